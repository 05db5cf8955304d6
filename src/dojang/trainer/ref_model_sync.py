"""Reference model refresh (TR-DPO, arXiv 2404.09656): every so many optimizer steps the reference moves to the policy.

reference <- alpha * policy + (1 - alpha) * reference
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dojang.trainer import checkpoint

__all__ = ["restore_reference", "save_reference", "sync_reference"]

FOLDER = "reference"


def sync_reference(policy: torch.nn.Module, reference: torch.nn.Module, alpha: float) -> None:
    """Mix the policy's weights into the reference's. Each rank does so with its own shards."""
    for module in (policy, reference):
        _reshard(module)
    with torch.no_grad():
        for source, target in zip(map(_own, policy.parameters()), map(_own, reference.parameters()), strict=True):
            # In the precision of the policy, of which the reference may have half.
            mixed = target.to(source).lerp(source, alpha) if alpha < 1 else source
            target.copy_(mixed)


def save_reference(path: Path, reference: torch.nn.Module) -> None:
    """Write the reference's weights into a checkpoint. All ranks must take part."""
    _reshard(reference)
    checkpoint.save_tensors(path / FOLDER, dict(reference.named_parameters()))


def restore_reference(path: Path, reference: torch.nn.Module) -> None:
    """Read what `save_reference` wrote. A checkpoint without it had a reference that never changed."""
    if not (path / FOLDER).exists():
        return
    _reshard(reference)
    tensors = {name: each.detach().clone() for name, each in reference.named_parameters()}
    checkpoint.load_tensors(path / FOLDER, tensors)
    with torch.no_grad():
        for name, each in reference.named_parameters():
            each.copy_(tensors[name])


def _reshard(module: torch.nn.Module) -> None:
    """FSDP keeps the root's weights whole after a forward pass that has no backward pass: changes would be lost."""
    reshard: Any = getattr(module, "reshard", None)
    if reshard is not None:
        reshard()


def _own(parameter: Tensor) -> Tensor:
    """This rank's part of a weight."""
    local = getattr(parameter, "to_local", None)
    return parameter.detach() if local is None else local().detach()
