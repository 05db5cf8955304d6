"""Element-wise operations of a decoder layer: residual sum with RMS norm, rotary embedding, SwiGLU.

Three implementations: plain torch, C++ on a CPU (`cpu_ops.py`), and Triton on a GPU (`triton_kernels.py`). All follow
transformers step by step, up to rounding.
Shapes: N tokens, H query heads, K key/value heads, D head size, R rotated part of a head, E hidden size, T positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from dojang.engine.cpu_ops import CompiledElementwise

__all__ = ["CppElementwise", "Elementwise", "ElementwiseSettings", "TorchElementwise"]

Heads = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class ElementwiseSettings:
    """Settings of a model's element-wise operations."""

    heads: int
    kv_heads: int
    head: int
    epsilon: float
    ropes: Sequence[tuple[Tensor, Tensor]]
    """Cosines and sines by position, [T, R] each, of each rotary embedding of the model."""
    norm_offset: float = 0.0
    """RMS norms multiply by this plus their weight."""


class Elementwise(Protocol):
    """Operations of a decoder layer between its matrix products."""

    def set_positions(self, position_N: Tensor) -> None:
        """Set the positions of the tokens for the calls that follow."""

    def add_rms_norm(self, x_NE: Tensor, y_NE: Tensor | None, weight_E: Tensor) -> Tensor:
        """Add y to x in place, and return the RMS norm of the sum."""

    def rotary(self, qkv_NF: Tensor, q_norm_D: Tensor | None, k_norm_D: Tensor | None, rope: int | None = 0) -> Heads:
        """Split into queries [N, H, D], keys and values [N, K, D]; normalise (if weights are given) and rotate the
        first two, with the rotary embedding of index `rope` (None: no rotation)."""

    def silu_mul(self, gate_up_NF: Tensor) -> Tensor:
        """SwiGLU: silu(first half of each row) times the second half."""


class TorchElementwise:
    """Plain torch, for any device and precision."""

    def __init__(self, settings: ElementwiseSettings) -> None:
        self._settings = settings
        self._ropes = [(cos_TR, _negate_first_half(sin_TR)) for cos_TR, sin_TR in settings.ropes]

    def set_positions(self, position_N: Tensor) -> None:
        self._rotations = [(cos_TR[position_N][:, None], sin_TR[position_N][:, None]) for cos_TR, sin_TR in self._ropes]

    def add_rms_norm(self, x_NE: Tensor, y_NE: Tensor | None, weight_E: Tensor) -> Tensor:
        return self._rms_norm(x_NE if y_NE is None else x_NE.add_(y_NE), weight_E)

    def rotary(self, qkv_NF: Tensor, q_norm_D: Tensor | None, k_norm_D: Tensor | None, rope: int | None = 0) -> Heads:
        heads = [self._settings.heads, self._settings.kv_heads]
        qkv_NGD = qkv_NF.view(len(qkv_NF), -1, self._settings.head)
        qk_NGD, v_NKD = qkv_NGD[:, : sum(heads)], qkv_NGD[:, sum(heads) :]
        if q_norm_D is not None and k_norm_D is not None:
            q_NHD, k_NKD = qk_NGD.split_with_sizes(heads, 1)
            qk_NGD = torch.cat((self._rms_norm(q_NHD, q_norm_D), self._rms_norm(k_NKD, k_norm_D)), 1)
        if rope is not None:
            qk_NGD = self._rotate(qk_NGD, *self._rotations[rope])
        q_NHD, k_NKD = qk_NGD.split_with_sizes(heads, 1)
        return q_NHD, k_NKD, v_NKD

    def silu_mul(self, gate_up_NF: Tensor) -> Tensor:
        gate, up = gate_up_NF.chunk(2, -1)
        return functional.silu(gate) * up

    def _rms_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        epsilon, offset = self._settings.epsilon, self._settings.norm_offset
        if offset:  # the sum with the weight is not rounded to half precision
            normed = functional.rms_norm(x.float(), x.shape[-1:], None, epsilon)
            return (normed * (offset + weight.float())).to(x.dtype)
        if x.dtype is torch.float64:  # transformers computes this in single precision in any model
            return weight * functional.rms_norm(x.float(), x.shape[-1:], None, epsilon).to(x.dtype)
        return functional.rms_norm(x, x.shape[-1:], weight, epsilon)

    @staticmethod
    def _rotate(x_NGD: Tensor, cos_N1R: Tensor, sin_N1R: Tensor) -> Tensor:
        """Rotate the first R dimensions of each head; the sine carries the minus sign."""
        size = cos_N1R.shape[-1]
        x_NGR, rest = x_NGD[..., :size], x_NGD[..., size:]
        first, second = x_NGR.chunk(2, -1)
        rotated_NGR = x_NGR * cos_N1R + torch.cat((second, first), -1) * sin_N1R
        return torch.cat((rotated_NGR, rest), -1) if rest.shape[-1] else rotated_NGR


class CppElementwise(TorchElementwise):
    """C++, for a CPU."""

    def __init__(self, settings: ElementwiseSettings, compiled: CompiledElementwise) -> None:
        super().__init__(settings)
        self._ropes = [(cos_TR.contiguous(), sin_TR) for cos_TR, sin_TR in self._ropes]
        self._compiled = compiled

    def set_positions(self, position_N: Tensor) -> None:
        self._position_N = position_N

    def add_rms_norm(self, x_NE: Tensor, y_NE: Tensor | None, weight_E: Tensor) -> Tensor:
        return self._compiled.add_rms_norm(
            x_NE, y_NE, weight_E, self._settings.epsilon, offset=self._settings.norm_offset
        )

    def rotary(self, qkv_NF: Tensor, q_norm_D: Tensor | None, k_norm_D: Tensor | None, rope: int | None = 0) -> Heads:
        settings = self._settings
        heads = (settings.heads, settings.kv_heads)
        qkv_NGD = qkv_NF.view(len(qkv_NF), -1, settings.head)
        if rope is not None or q_norm_D is not None:
            rotation = None if rope is None else (*self._ropes[rope], self._position_N)
            norms = (q_norm_D, k_norm_D)
            self._compiled.rotary(qkv_NGD, heads, rotation, norms, settings.epsilon, offset=settings.norm_offset)
        q_NHD, k_NKD, v_NKD = qkv_NGD.split_with_sizes([*heads, settings.kv_heads], 1)
        return q_NHD, k_NKD, v_NKD

    def silu_mul(self, gate_up_NF: Tensor) -> Tensor:
        return self._compiled.silu_mul(gate_up_NF)


def _negate_first_half(sin_TR: Tensor) -> Tensor:
    half = sin_TR.shape[-1] // 2
    return torch.cat((-sin_TR[:, :half], sin_TR[:, half:]), -1)
