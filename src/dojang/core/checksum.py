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

_BLOCK = 1 << 16
"""64-bit words per block: half a MiB should fit a processor's caches. Part of the checksum's definition."""
_BLOCKS = {"cuda": 256}
"""Blocks computed at a time: fewer, larger kernels on a GPU."""
_ODD = (0x5851F42D4C957F2D, 0x2545F4914F6CDD1D)  # multiplying by an odd number loses no bits


def checksum(tensors: "Mapping[str, Tensor]", device: "torch.device | None" = None) -> str:
    """Checksum of named weights; computed on `device`, if given, to which they are copied chunk by chunk."""
    lines = [_line(name, tensors[name], device) for name in tensors]  # one at a time: they may be made when read
    digest = hashlib.blake2b(digest_size=8)
    for name, kind, total in sorted(lines, key=lambda line: line[0]):
        digest.update(f"{name} {kind} {int(total)}\n".encode())
    return digest.hexdigest()


def _line(name: str, tensor: "Tensor", device: "torch.device | None") -> "tuple[str, str, Tensor]":
    return name, f"{tensor.dtype} {tuple(tensor.shape)}", _sum(tensor, device)


def bits(tensor: "Tensor") -> "Tensor":
    """Flat view of a tensor as integers with the same bits."""
    import torch

    views = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.detach().contiguous().flatten().view(views[tensor.dtype.itemsize])


def _sum(tensor: "Tensor", device: "torch.device | None") -> "Tensor":
    """Sum of the mixed words modulo 2 to the 64, by integer overflow. A word is multiplied by odd numbers for its
    position in its block and for its block; the shifts spread changes of high bits, which multiplying does not."""
    import torch

    bits_N, device = bits(tensor), device or tensor.device
    per_block = _BLOCK * 8 // bits_N.itemsize
    blocks = _BLOCKS.get(device.type, 1)
    total = torch.zeros((), dtype=torch.int64, device=device)
    odd_M = (torch.arange(min(_BLOCK, -(-bits_N.nbytes // 8)), device=device) * 2 + 1) * _ODD[0]
    for first in range(0, -(-len(bits_N) // per_block), blocks):
        chunk_N = bits_N[first * per_block : (first + blocks) * per_block]
        odd_K = (torch.arange(first, first - (-len(chunk_N) // per_block), device=device) * 2 + 1) * _ODD[1]
        mixed_KM = torch.empty(len(odd_K), len(odd_M), dtype=torch.int64, device=device)
        words = mixed_KM.view(-1)
        words[len(chunk_N) * bits_N.itemsize // 8 :] = 0  # padding: zeros add nothing to the sum
        words.view(bits_N.dtype)[: len(chunk_N)] = chunk_N
        mixed_KM *= odd_M
        mixed_KM ^= mixed_KM >> 32
        mixed_KM *= odd_K[:, None]
        mixed_KM ^= mixed_KM >> 29
        total += mixed_KM.sum()
    return total
