"""Linear layers for inference: several fused into one matrix product, with weights packed for the CPU or in FP8."""

import platform
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from dojang.engine.fp8 import Fp8Weight

__all__ = ["Linear"]

_ROWS = 64
"""Number of input rows that packing optimizes for."""


class Linear:
    """Several linear layers with their weights concatenated; `sizes` is the number of output rows of each."""

    def __init__(self, weight: Tensor, sizes: Sequence[int], bias: Tensor | None = None, *, fp8: bool = False) -> None:
        self.weight = weight
        self._sizes = list(sizes)
        self._bias = bias
        self._quantized = Fp8Weight(weight) if fp8 else None
        self._packs = _packs(weight)
        self._packed: Tensor | None = None
        """Packed at first use: weights replaced before that are never packed."""

    def parts(self) -> list[tuple[Tensor, Tensor | None]]:
        """Views of each layer's weight and bias. Call `refresh` after writing into them."""
        weights = self.weight.split_with_sizes(self._sizes)
        biases = self._bias.split_with_sizes(self._sizes) if self._bias is not None else [None] * len(weights)
        return list(zip(weights, biases, strict=True))

    def named(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Views of all weights and biases, by the names of the layers."""
        found = {}
        for name, (weight, bias) in zip(names, self.parts(), strict=True):
            found[f"{name}.weight"] = weight
            if bias is not None:
                found[f"{name}.bias"] = bias
        return found

    def refresh(self) -> None:
        """Drop the packed weights, after the weights have changed; quantize them again."""
        self._packed = None
        if self._quantized is not None:
            self._quantized.fill(self.weight)

    def __call__(self, x: Tensor) -> Tensor:
        if self._quantized is not None:
            return self._quantized.product(x, self._bias)
        if self._packs and (len(x) > 1 or x.dtype is torch.bfloat16):  # a single row is faster unpacked
            if self._packed is None:
                self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, _ROWS)
            result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
            return result
        return functional.linear(x, self.weight, self._bias)


def _packs(weight: Tensor) -> bool:
    """Whether to pack: bfloat16 if the CPU supports it, float32 only on ARM. Packing doubles the memory."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if weight.dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype is torch.float32 and platform.machine() == "aarch64"
