"""What happens between a decoder's matrix products, in plain torch operations, or in C++ on a processor (`cpu_ops.py`).

`triton_kernels.py` has the same, fused, for a GPU. All follow transformers step by step up to rounding.
Shapes: N tokens, H query heads, K heads of keys and values, D numbers a head, E numbers a token, T positions.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from dojang.engine.cpu_ops import Between

__all__ = ["Arithmetic", "NativeArithmetic", "PlainArithmetic"]

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
        self._heads, self._kv_heads = heads, kv_heads
        self._epsilon = epsilon
        half = cos_TD.shape[-1] // 2
        self._cos_TD, self._sin_TD = cos_TD, torch.cat((-sin_TD[:, :half], sin_TD[:, half:]), -1)

    def at(self, position_N: Tensor) -> None:
        self._cos_N1D, self._sin_N1D = self._cos_TD[position_N][:, None], self._sin_TD[position_N][:, None]

    def normed_sum(self, x_NE: Tensor, y_NE: Tensor | None, weight_E: Tensor) -> Tensor:
        return self._normed(x_NE if y_NE is None else x_NE.add_(y_NE), weight_E)

    def rotated(self, qkv_NF: Tensor, q_norm_D: Tensor | None, k_norm_D: Tensor | None) -> Heads:
        heads = [self._heads, self._kv_heads]
        qkv_NGD = qkv_NF.view(len(qkv_NF), -1, self._cos_TD.shape[-1])
        qk_NGD, v_NKD = qkv_NGD[:, : sum(heads)], qkv_NGD[:, sum(heads) :]
        if q_norm_D is not None and k_norm_D is not None:
            q_NHD, k_NKD = qk_NGD.split_with_sizes(heads, 1)
            qk_NGD = torch.cat((self._normed(q_NHD, q_norm_D), self._normed(k_NKD, k_norm_D)), 1)
        turned_NGD = qk_NGD * self._cos_N1D + self._swapped(qk_NGD) * self._sin_N1D
        q_NHD, k_NKD = turned_NGD.split_with_sizes(heads, 1)
        return q_NHD, k_NKD, v_NKD

    def gated(self, gate_up_NF: Tensor) -> Tensor:
        gate, up = gate_up_NF.chunk(2, -1)
        return functional.silu(gate) * up

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        if x.dtype is torch.float64:  # transformers does this in single precision whatever the model's
            return weight * functional.rms_norm(x.float(), x.shape[-1:], None, self._epsilon).to(x.dtype)
        return functional.rms_norm(x, x.shape[-1:], weight, self._epsilon)

    @staticmethod
    def _swapped(x_NGD: Tensor) -> Tensor:
        """Both halves of each head, the second first; the minus is the sine's."""
        first, second = x_NGD.chunk(2, -1)
        return torch.cat((second, first), -1)


class NativeArithmetic(PlainArithmetic):
    """Arithmetic for a processor, in C++."""

    def __init__(
        self, heads: int, kv_heads: int, epsilon: float, cos_TD: Tensor, sin_TD: Tensor, between: Between
    ) -> None:
        super().__init__(heads, kv_heads, epsilon, cos_TD.contiguous(), sin_TD)
        self._between = between

    def at(self, position_N: Tensor) -> None:
        self._position_N = position_N

    def normed_sum(self, x_NE: Tensor, y_NE: Tensor | None, weight_E: Tensor) -> Tensor:
        return self._between.norm(x_NE, y_NE, weight_E, self._epsilon)

    def rotated(self, qkv_NF: Tensor, q_norm_D: Tensor | None, k_norm_D: Tensor | None) -> Heads:
        heads = (self._heads, self._kv_heads)
        qkv_NGD = qkv_NF.view(len(qkv_NF), -1, self._cos_TD.shape[-1])
        rotation = (self._cos_TD, self._sin_TD, self._position_N)
        self._between.turn(qkv_NGD, heads, rotation, (q_norm_D, k_norm_D), self._epsilon)
        q_NHD, k_NKD, v_NKD = qkv_NGD.split_with_sizes([*heads, self._kv_heads], 1)
        return q_NHD, k_NKD, v_NKD

    def gated(self, gate_up_NF: Tensor) -> Tensor:
        return self._between.gate(gate_up_NF)
