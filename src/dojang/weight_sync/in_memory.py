"""Weight store inside one process.

The store keeps a copy, so that a trainer's next step cannot change a published version while an engine reads it. Only
the newest version is kept; fetching an older one is a bug and raises LookupError.
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
        """Return the published version."""
        if self._version is None:
            raise LookupError("no weights have been published yet")
        return self._version

    def publish(self, version: int, tensors: Mapping[str, Tensor], factors: Factors = NONE) -> None:
        kept = {name: tensor.detach().to(self._dtype, copy=True) for name, tensor in tensors.items()}
        if unknown := factors.keys() - self._tensors.keys() - kept.keys():
            raise LookupError(f"factors were given for {min(unknown)}, which is not a weight")
        self._tensors = {**self._tensors, **kept} if factors else kept  # a new dict: engines may still read the old one
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
