"""Float32 logits from half-precision activations and weights: a matmul without rounding its result.

A product of two bfloat16 numbers is exact in float32, and matmuls accumulate in float32 anyway; rounding the final
logits to bfloat16 is what costs precision. The trainer and the engine both use this function.
"""

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["float32_logits"]


def float32_logits(x_NE: Tensor, head_VE: Tensor) -> Tensor:
    """Computes x @ head.T in float32, [N, V]."""
    if x_NE.is_cuda and x_NE.dtype == head_VE.dtype and x_NE.dtype in (torch.bfloat16, torch.float16):
        return torch.mm(x_NE, head_VE.t(), out_dtype=torch.float32)
    return functional.linear(x_NE.float(), head_VE.float())
