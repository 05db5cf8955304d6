"""Reference model refresh (TR-DPO, arXiv 2404.09656): every N optimizer steps the reference moves towards the policy.

reference <- alpha * policy + (1 - alpha) * reference
"""

from pathlib import Path
from typing import Any

import torch

from dojang.trainer import checkpoint
from dojang.trainer.fsdp import local_part

__all__ = ["restore_reference", "save_reference", "sync_reference"]

FOLDER = "reference"


def sync_reference(policy: torch.nn.Module, reference: torch.nn.Module, alpha: float) -> None:
    """Mixes the policy's weights into the reference's. Each rank mixes its own shards."""
    for module in (policy, reference):
        _reshard(module)
    with torch.no_grad():
        for source, target in zip(
            map(local_part, policy.parameters()), map(local_part, reference.parameters()), strict=True
        ):
            # In the precision of the policy; the reference may be in half precision.
            mixed = target.to(source).lerp(source, alpha) if alpha < 1 else source
            target.copy_(mixed)


def save_reference(path: Path, reference: torch.nn.Module) -> None:
    """Saves the reference's weights into a checkpoint. All ranks must call this."""
    _reshard(reference)
    checkpoint.save_tensors(path / FOLDER, dict(reference.named_parameters()))


def restore_reference(path: Path, reference: torch.nn.Module) -> None:
    """Restores what `save_reference` wrote. A checkpoint without it has the initial reference."""
    if not (path / FOLDER).exists():
        return
    _reshard(reference)
    tensors = {name: each.detach().clone() for name, each in reference.named_parameters()}
    checkpoint.load_tensors(path / FOLDER, tensors)
    with torch.no_grad():
        for name, each in reference.named_parameters():
            each.copy_(tensors[name])


def _reshard(module: torch.nn.Module) -> None:
    """Reshards the root module: after a forward pass without a backward pass FSDP keeps it gathered, and changes to its
    shards would be lost."""
    reshard: Any = getattr(module, "reshard", None)
    if reshard is not None:
        reshard()
