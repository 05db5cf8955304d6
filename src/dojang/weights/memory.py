"""Weights handed over inside one process.

The store keeps a copy, so a trainer that steps on cannot change a published version under an engine's feet.
Only the newest version is kept: an engine that asks for an older one is a bug, and is told so.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["MemoryWeights"]


class MemoryWeights:
    """A WeightStore for a trainer and an engine in the same process."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._version: int | None = None
        self._tensors: dict[str, Tensor] = {}

    def publish(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = {name: tensor.detach().to(self._dtype, copy=True) for name, tensor in tensors.items()}
        self._version = version

    def fetch(self, version: int) -> Mapping[str, Tensor]:
        if version != self._version:
            raise LookupError(f"weights version {version} is not held; the store has {self._version}")
        return self._tensors
