"""Linear layers for generation: several of a model's in one product, and packed the way the processor likes them."""

import platform
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["Linear"]

_ROWS = 64
"""Packing is for products with about so many rows."""


class Linear:
    """Layers whose weights lie one under the other, so many rows of each."""

    def __init__(self, weight: Tensor, sizes: Sequence[int], bias: Tensor | None = None) -> None:
        self.weight = weight
        self._sizes = list(sizes)
        self._bias = bias
        self._packs = _packs(weight)
        self._packed: Tensor | None = None
        """Made when it is first wanted: weights that are replaced before are never packed."""

    def parts(self) -> list[tuple[Tensor, Tensor | None]]:
        """Weight and bias of each layer, to be written into; `refresh` afterwards."""
        weights = self.weight.split_with_sizes(self._sizes)
        biases = self._bias.split_with_sizes(self._sizes) if self._bias is not None else [None] * len(weights)
        return list(zip(weights, biases, strict=True))

    def refresh(self) -> None:
        """The weights have changed."""
        self._packed = None

    def __call__(self, x: Tensor) -> Tensor:
        if self._packs and (len(x) > 1 or x.dtype is torch.bfloat16):  # one row alone is faster plain
            if self._packed is None:
                self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, _ROWS)
            result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
            return result
        return functional.linear(x, self.weight, self._bias)


def _packs(weight: Tensor) -> bool:
    """In bfloat16 wherever that is fast; in single precision on ARM alone. It takes the memory once more."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if weight.dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype is torch.float32 and platform.machine() == "aarch64"
