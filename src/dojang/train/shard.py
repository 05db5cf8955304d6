"""Weights, gradients and what the optimiser keeps, spread over all ranks (FSDP2); each layer is whole only while it
works."""

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from transformers.modeling_layers import GradientCheckpointingLayer

from dojang.train.ranks import Ranks

__all__ = ["shard", "whole"]


def shard(module: torch.nn.Module, ranks: Ranks, compute: torch.dtype) -> None:
    """Spread a module's weights. Its forward must be called as a whole; gradients become means over all ranks."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # takes long to load, and few need it

    half = compute in (torch.bfloat16, torch.float16)
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32) if half else MixedPrecisionPolicy()
    mesh = init_device_mesh(ranks.kind, (ranks.world,))
    for layer in [each for each in module.modules() if isinstance(each, GradientCheckpointingLayer)]:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(module, mesh=mesh, mp_policy=policy)


def whole(tensor: Tensor) -> Tensor:
    """A tensor gathered from the ranks it is spread over, if it is. All of them must ask."""
    gather = getattr(tensor, "full_tensor", None)  # not by its class, which takes long to load
    return tensor if gather is None else gather()
