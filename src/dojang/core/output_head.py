"""Logits in float32 from half-precision activations and weights: the product without rounding its result.

A product of two bfloat16 numbers is exact in float32, and sums are accumulated there anyway; what costs precision is
rounding the finished logits to bfloat16. The trainer and the engine use this same product.
"""

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["float32_logits"]


def float32_logits(x_NE: Tensor, head_VE: Tensor) -> Tensor:
    """x @ head.T in float32, [N, V]."""
    if x_NE.is_cuda and x_NE.dtype == head_VE.dtype and x_NE.dtype in (torch.bfloat16, torch.float16):
        return torch.mm(x_NE, head_VE.t(), out_dtype=torch.float32)
    return functional.linear(x_NE.float(), head_VE.float())
