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
    """The layers whose weights are given, one under the other. A single one is used as it is, not copied."""

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor] = ()) -> None:
        self._sizes = [len(weight) for weight in weights]
        self.weight = weights[0] if len(weights) == 1 else torch.cat(list(weights))
        self._bias = torch.cat(list(biases)) if biases else None
        self._packed: Tensor | None = None
        self.refresh()

    def parts(self) -> list[tuple[Tensor, Tensor | None]]:
        """Weight and bias of each layer, to be written into; `refresh` afterwards."""
        weights = self.weight.split_with_sizes(self._sizes)
        biases = self._bias.split_with_sizes(self._sizes) if self._bias is not None else [None] * len(weights)
        return list(zip(weights, biases, strict=True))

    def refresh(self) -> None:
        """The weights have changed."""
        if _packs(self.weight):
            self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, _ROWS)

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed is not None and (len(x) > 1 or x.dtype is torch.bfloat16):  # one row alone is faster plain
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
