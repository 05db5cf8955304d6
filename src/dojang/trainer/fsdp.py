"""FSDP2: shards weights, gradients and optimizer state over all ranks; each layer is gathered only while it runs."""

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from transformers.modeling_layers import GradientCheckpointingLayer

from dojang.trainer.process_group import ProcessGroup

__all__ = ["full_tensor", "is_sharded", "local_part", "shard"]


def shard(module: torch.nn.Module, ranks: ProcessGroup, compute: torch.dtype, *, offload: bool = False) -> None:
    """Shards a module's weights. Call the module itself, not its parts; gradients become means over all ranks.

    4-bit weights are small and stay replicated on every rank. With `offload`, the shards are kept in CPU memory.
    """
    from torch.distributed.fsdp import (
        CPUOffloadPolicy,
        MixedPrecisionPolicy,
        OffloadPolicy,
        fully_shard,
    )  # slow to import

    half = compute in (torch.bfloat16, torch.float16)
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32) if half else MixedPrecisionPolicy()
    mesh = init_device_mesh(ranks.kind, (ranks.world,))
    packed = {each for each in module.parameters() if not each.is_floating_point()}
    offload_policy = CPUOffloadPolicy() if offload and ranks.kind == "cuda" else OffloadPolicy()
    for layer in [each for each in module.modules() if isinstance(each, GradientCheckpointingLayer)]:
        fully_shard(layer, mesh=mesh, mp_policy=policy, offload_policy=offload_policy, ignored_params=packed)
    fully_shard(module, mesh=mesh, mp_policy=policy, offload_policy=offload_policy, ignored_params=packed)
    module.register_forward_hook(_reshard_without_backward)


def _reshard_without_backward(module: torch.nn.Module, *_: object) -> None:
    """Reshard the root module after a forward pass without a backward pass, which would do it otherwise.

    The root's parameters stay unsharded after its forward pass. Without resharding, `module.parameters()` would then be
    copies that have no gradient and do not follow the optimizer: clipping and publishing would use stale values.
    """
    if not torch.is_grad_enabled():
        module.reshard()  # type: ignore[operator]  # of FSDPModule


def full_tensor(tensor: Tensor) -> Tensor:
    """Gathers a sharded tensor from all ranks; other tensors as they are. All ranks must call this."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is sharded over the ranks."""
    return hasattr(tensor, "full_tensor")  # not by isinstance: its class is slow to import


def local_part(tensor: Tensor) -> Tensor:
    """This rank's shard of a tensor; other tensors as they are. Without gradient."""
    local = getattr(tensor, "to_local", None)
    return tensor.detach() if local is None else local().detach()
