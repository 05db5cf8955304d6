"""Weights, gradients and what the optimizer keeps, spread over all ranks (FSDP2); each layer is whole only while it
works."""

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from transformers.modeling_layers import GradientCheckpointingLayer

from dojang.trainer.process_group import Ranks

__all__ = ["shard", "whole"]


def shard(module: torch.nn.Module, ranks: Ranks, compute: torch.dtype, *, away: bool = False) -> None:
    """Spread a module's weights. Its forward must be called as a whole; gradients become means over all ranks.

    Weights packed into four bits are few, and stay whole on every rank. With `away`, what each rank keeps waits in the
    processor's memory.
    """
    from torch.distributed.fsdp import (
        CPUOffloadPolicy,
        MixedPrecisionPolicy,
        OffloadPolicy,
        fully_shard,
    )  # slow to load

    half = compute in (torch.bfloat16, torch.float16)
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32) if half else MixedPrecisionPolicy()
    mesh = init_device_mesh(ranks.kind, (ranks.world,))
    packed = {each for each in module.parameters() if not each.is_floating_point()}
    offload = CPUOffloadPolicy() if away and ranks.kind == "cuda" else OffloadPolicy()
    for layer in [each for each in module.modules() if isinstance(each, GradientCheckpointingLayer)]:
        fully_shard(layer, mesh=mesh, mp_policy=policy, offload_policy=offload, ignored_params=packed)
    fully_shard(module, mesh=mesh, mp_policy=policy, offload_policy=offload, ignored_params=packed)
    module.register_forward_hook(_reshard_without_backward)


def _reshard_without_backward(module: torch.nn.Module, *_: object) -> None:
    """Reshard the root module after a forward pass without a backward pass, which would do it otherwise.

    The root's parameters stay unsharded after its forward pass. Without resharding, `module.parameters()` would then be
    copies that have no gradient and do not follow the optimizer: clipping and publishing would use stale values.
    """
    if not torch.is_grad_enabled():
        module.reshard()  # type: ignore[operator]  # of FSDPModule


def whole(tensor: Tensor) -> Tensor:
    """A tensor gathered from the ranks it is spread over, if it is. All of them must ask."""
    gather = getattr(tensor, "full_tensor", None)  # not by its class, which takes long to load
    return tensor if gather is None else gather()
