"""Checksum over weights, to verify that two processes hold the same; computed on the weights' device.

It covers each number's bits, its position and its tensor's name; the order of tensors does not matter. It detects bugs
and broken transfers, not deliberate changes.
"""

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["bits", "checksum"]

_CHUNK = 1 << 20
"""Numbers per chunk: as 64-bit integers they take eight bytes each, and should fit a processor's caches."""
_MULTIPLIER = 0x5851F42D4C957F2D  # odd, so that multiplying loses no bits


def checksum(tensors: "Mapping[str, Tensor]", device: "torch.device | None" = None) -> str:
    """Checksum of named weights; computed on `device`, if given, to which they are copied chunk by chunk."""
    lines = [(name, f"{tensor.dtype} {tuple(tensor.shape)}", _sum(tensor, device)) for name, tensor in tensors.items()]
    digest = hashlib.blake2b(digest_size=8)
    for name, kind, total in sorted(lines, key=lambda line: line[0]):
        digest.update(f"{name} {kind} {int(total)}\n".encode())
    return digest.hexdigest()


def bits(tensor: "Tensor") -> "Tensor":
    """Flat view of a tensor as integers with the same bits."""
    import torch

    views = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.detach().contiguous().flatten().view(views[tensor.dtype.itemsize])


def _sum(tensor: "Tensor", device: "torch.device | None") -> "Tensor":
    """Sum modulo 2 to the 64, by integer overflow."""
    import torch

    bits_N, device = bits(tensor), device or tensor.device
    total = torch.zeros((), dtype=torch.int64, device=device)
    odd_M = torch.arange(min(_CHUNK, len(bits_N)), dtype=torch.int64, device=device) * 2 + 1
    for start in range(0, len(bits_N), _CHUNK):
        chunk_M = bits_N[start : start + _CHUNK].to(device).long() + 1
        total += (
            chunk_M * odd_M[: len(chunk_M)]
        ).sum() + chunk_M.sum() * 2 * start  # weight of each number: 2 * position + 1
    return total * _MULTIPLIER
