"""A sum over weights that tells whether two sides hold the same, computed where the weights are.

Every number counts with its bits, its place in its tensor and the tensor's name; the order of tensors does not matter.
It guards against mistakes and broken transfers, not against somebody who wants to deceive.
"""

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["checksum"]

_PIECE = 1 << 24
"""Numbers at a time: widened to 64 bits they take eight times as many bytes."""
_MULTIPLIER = 0x5851F42D4C957F2D  # odd, so that no place is forgotten


def checksum(tensors: "Mapping[str, Tensor]") -> str:
    """The sum of named weights."""
    sums = {name: _sum(tensor) for name, tensor in tensors.items()}
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(sums):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {int(sums[name])}\n".encode())
    return digest.hexdigest()


def _sum(tensor: "Tensor") -> "Tensor":
    """Modulo 2 to the 64, which is how integers overflow."""
    import torch

    views = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits_N = tensor.detach().contiguous().flatten().view(views[tensor.dtype.itemsize])
    total = torch.zeros((), dtype=torch.int64, device=bits_N.device)
    for start in range(0, len(bits_N), _PIECE):
        piece_N = bits_N[start : start + _PIECE].long()
        place_N = torch.arange(start, start + len(piece_N), dtype=torch.int64, device=bits_N.device)
        total += ((piece_N + 1) * (place_N * 2 + 1) * _MULTIPLIER).sum()
    return total
