"""Adds LoRA factors to weights.

The sum is computed in float64, so that trainer and engines get the same bits on different hardware, whose matrix
products add in different orders: the error is far below what rounding to the weight's dtype shows.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from dojang.core.lazy_weights import LazyWeight, LazyWeights, joined, like
from dojang.protocols import Factors

__all__ = ["merge_factors", "merged_weights"]

_CHUNK = 1 << 22
"""Elements computed at a time: in float64 they take 32 MiB."""


def merge_factors(
    weight: Tensor, b: Tensor, a: Tensor, dtype: torch.dtype, device: torch.device | None = None
) -> Tensor:
    """Return weight + b @ a in `dtype`, on `device` if given, to which the weight is then copied chunk by chunk."""
    rows, columns = weight.shape
    step = max(1, _CHUNK // max(1, columns))
    device = device or weight.device
    wide_a = a.to(device).double()
    merged = torch.empty(weight.shape, dtype=dtype, device=device)
    for start in range(0, rows, step):
        chunk = slice(start, start + step)
        merged[chunk] = weight[chunk].to(device).double() + b[chunk].to(device).double() @ wide_a
    return merged


def merged_weights(
    tensors: Mapping[str, Tensor],
    factors: Factors,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> LazyWeights:
    """Return all weights, those with factors merged whenever they are read: in `dtype` if given, else their own."""

    def merged(name: str) -> LazyWeight:
        shaped = like(tensors, name)
        wanted = dtype or shaped.dtype
        alike = torch.empty_like(shaped, dtype=wanted, device="meta")
        return LazyWeight(alike, lambda: merge_factors(tensors[name], *factors[name], wanted, device))

    return joined(tensors, LazyWeights({name: merged(name) for name in factors}))
