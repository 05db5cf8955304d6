"""A sum over weights that tells whether two sides hold the same, computed where the weights are.

Every number counts with its bits, its place in its tensor and the tensor's name; the order of tensors does not matter.
It guards against mistakes and broken transfers, not against somebody who wants to deceive.
"""

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["bits", "checksum"]

_PIECE = 1 << 20
"""Numbers at a time: widened to 64 bits they take eight bytes each, and should not leave a processor's caches."""
_MULTIPLIER = 0x5851F42D4C957F2D  # odd, so that no place is forgotten


def checksum(tensors: "Mapping[str, Tensor]", device: "torch.device | None" = None) -> str:
    """The sum of named weights; on another device than theirs, to which they go piece by piece, if one is given."""
    sums = {name: _sum(tensor, device) for name, tensor in tensors.items()}
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(sums):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {int(sums[name])}\n".encode())
    return digest.hexdigest()


def bits(tensor: "Tensor") -> "Tensor":
    """All numbers of a tensor, as integers of the same bits."""
    import torch

    views = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.detach().contiguous().flatten().view(views[tensor.dtype.itemsize])


def _sum(tensor: "Tensor", device: "torch.device | None") -> "Tensor":
    """Modulo 2 to the 64, which is how integers overflow."""
    import torch

    bits_N, device = bits(tensor), device or tensor.device
    total = torch.zeros((), dtype=torch.int64, device=device)
    odd_M = torch.arange(min(_PIECE, len(bits_N)), dtype=torch.int64, device=device) * 2 + 1
    for start in range(0, len(bits_N), _PIECE):
        piece_M = bits_N[start : start + _PIECE].to(device).long() + 1
        total += (piece_M * odd_M[: len(piece_M)]).sum() + piece_M.sum() * 2 * start  # times 2 place + 1
    return total * _MULTIPLIER
