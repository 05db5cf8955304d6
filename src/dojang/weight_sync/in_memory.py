"""Weights handed over inside one process.

The store keeps a copy, so a trainer that steps on cannot change a published version under an engine's feet.
Only the newest version is kept: an engine that asks for an older one is a bug, and is told so.
"""

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from dojang.protocols import Changes, Factors

__all__ = ["NONE", "MemoryWeights"]

NONE: Factors = MappingProxyType({})


class MemoryWeights:
    """A WeightStore for a trainer and an engine in the same process."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._version: int | None = None
        self._tensors: dict[str, Tensor] = {}
        self._factors: dict[str, tuple[Tensor, Tensor]] = {}

    def newest(self) -> int:
        """The version there is."""
        if self._version is None:
            raise LookupError("nothing has been published yet")
        return self._version

    def publish(self, version: int, tensors: Mapping[str, Tensor], factors: Factors = NONE) -> None:
        kept = {name: tensor.detach().to(self._dtype, copy=True) for name, tensor in tensors.items()}
        if unknown := factors.keys() - self._tensors.keys() - kept.keys():
            raise LookupError(f"there is no weight {min(unknown)} to add factors to")
        self._tensors = {**self._tensors, **kept} if factors else kept  # a new one: engines may still look at the old
        self._factors = {name: (b.detach().clone(), a.detach().clone()) for name, (b, a) in factors.items()}
        self._version = version

    def fetch(self, version: int) -> Mapping[str, Tensor]:
        if version != self._version:
            raise LookupError(f"weights version {version} is not held; the store has {self._version}")
        added = {name: self._sum(self._tensors[name], b, a) for name, (b, a) in self._factors.items()}
        return {**self._tensors, **added}

    def changes(self, base: int, version: int) -> Changes | None:
        return None

    def _sum(self, tensor: Tensor, b: Tensor, a: Tensor) -> Tensor:
        return (tensor.to(b.dtype) + b @ a).to(self._dtype)
