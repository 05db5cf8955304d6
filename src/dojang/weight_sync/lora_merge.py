"""Adds LoRA factors to a weight.

The sum is computed in float64, so that trainer and engines get the same bits on different hardware, whose matrix
products add in different orders: the error is far below what rounding to the weight's dtype shows.
"""

import torch
from torch import Tensor

__all__ = ["merge_factors"]

_CHUNK = 1 << 22
"""Elements computed at a time: in float64 they take 32 MiB."""


def merge_factors(
    weight: Tensor, b: Tensor, a: Tensor, dtype: torch.dtype, device: torch.device | None = None
) -> Tensor:
    """Return weight + b @ a in `dtype`, on the weight's device; computed on `device`, if given, to which it is copied
    chunk by chunk."""
    rows, columns = weight.shape
    step = max(1, _CHUNK // max(1, columns))
    device = device or weight.device
    wide_a = a.to(device).double()
    merged = torch.empty(weight.shape, dtype=dtype, device=weight.device)
    for start in range(0, rows, step):
        chunk = slice(start, start + step)
        merged[chunk] = weight[chunk].to(device).double() + b[chunk].to(device).double() @ wide_a
    return merged
