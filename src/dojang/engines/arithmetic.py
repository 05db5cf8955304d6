"""What happens between a decoder's matrix products, in plain torch operations.

`kernels.py` has the same, fused, for a GPU. Both follow transformers step by step up to rounding.
Shapes: N tokens, H query heads, K heads of keys and values, D numbers a head, E numbers a token, T positions.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["Arithmetic", "PlainArithmetic"]

Heads = tuple[Tensor, Tensor, Tensor]


class Arithmetic(Protocol):
    """The verbs of a decoder layer that are no products."""

    def at(self, position_N: Tensor) -> None:
        """The positions of the tokens that follow."""

    def normed_sum(self, x_NE: Tensor, y_NE: Tensor | None, weight_E: Tensor) -> Tensor:
        """Add y to x, in place, and return the sum normalised."""

    def rotated(self, qkv_NF: Tensor, q_norm_D: Tensor | None, k_norm_D: Tensor | None) -> Heads:
        """Queries [N, H, D], keys and values [N, K, D]; the first two normalised, if so, and turned by position."""

    def gated(self, gate_up_NF: Tensor) -> Tensor:
        """The second half of each row, let through by the first."""


class PlainArithmetic:
    """Arithmetic for any device and precision."""

    def __init__(self, heads: int, kv_heads: int, epsilon: float, cos_TD: Tensor, sin_TD: Tensor) -> None:
        self._heads = [heads, kv_heads, kv_heads]
        self._epsilon = epsilon
        self._cos_TD, self._sin_TD = cos_TD, sin_TD

    def at(self, position_N: Tensor) -> None:
        self._cos_N1D, self._sin_N1D = self._cos_TD[position_N][:, None], self._sin_TD[position_N][:, None]

    def normed_sum(self, x_NE: Tensor, y_NE: Tensor | None, weight_E: Tensor) -> Tensor:
        return self._normed(x_NE if y_NE is None else x_NE.add_(y_NE), weight_E)

    def rotated(self, qkv_NF: Tensor, q_norm_D: Tensor | None, k_norm_D: Tensor | None) -> Heads:
        head = self._cos_TD.shape[-1]
        parts = qkv_NF.split_with_sizes([count * head for count in self._heads], -1)
        q_NHD, k_NKD, v_NKD = (part.view(-1, count, head) for part, count in zip(parts, self._heads, strict=True))
        if q_norm_D is not None and k_norm_D is not None:
            q_NHD, k_NKD = self._normed(q_NHD, q_norm_D), self._normed(k_NKD, k_norm_D)
        return self._turned(q_NHD), self._turned(k_NKD), v_NKD

    def gated(self, gate_up_NF: Tensor) -> Tensor:
        gate, up = gate_up_NF.chunk(2, -1)
        return functional.silu(gate) * up

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        if x.dtype is torch.float64:  # transformers does this in single precision whatever the model's
            return weight * functional.rms_norm(x.float(), x.shape[-1:], None, self._epsilon).to(x.dtype)
        return functional.rms_norm(x, x.shape[-1:], weight, self._epsilon)

    def _turned(self, x_NHD: Tensor) -> Tensor:
        first, second = x_NHD.chunk(2, -1)
        return x_NHD * self._cos_N1D + torch.cat((-second, first), -1) * self._sin_N1D
