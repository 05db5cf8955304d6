"""Weights with what has changed in them.

After a step with a small learning rate most numbers are, in bfloat16, the same as before. They are compared bit by bit
where they are, while both versions are there anyway; only the newest is kept.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from dojang.core.checksum import bits, checksum
from dojang.protocols import Changes, Factors, Patch
from dojang.weight_sync.in_memory import NONE, MemoryWeights

__all__ = ["DeltaWeights", "difference"]


class DeltaWeights(MemoryWeights):
    """A WeightStore that knows what has changed since the version before."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(dtype)
        self._base: int | None = None
        self._changes: Changes | None = None

    def publish(self, version: int, tensors: Mapping[str, Tensor], factors: Factors = NONE) -> None:
        before = None if self._version is None else self.fetch(self._version)
        self._base, self._changes = self._version, None
        super().publish(version, tensors, factors)
        if before is not None:
            self._changes = difference(before, self.fetch(version))

    def changes(self, base: int, version: int) -> Changes | None:
        return self._changes if (base, version) == (self._base, self._version) else None


def difference(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Changes | None:
    """What makes the second out of the first; None if they are not the same weights. Those most of whose numbers have
    changed come whole: their places would take more than the numbers."""
    if {name: (each.shape, each.dtype) for name, each in before.items()} != {
        name: (each.shape, each.dtype) for name, each in after.items()
    }:
        return None
    whole: dict[str, Tensor] = {}
    patches = []
    for name, new in after.items():
        changed_N = bits(before[name]) != bits(new)
        count = int(changed_N.sum())
        if 2 * count > len(changed_N):
            whole[name] = new
        elif count:
            index_N = changed_N.nonzero().flatten()
            small = torch.int32 if len(changed_N) < 2**31 else torch.int64
            patches.append(Patch(name, index_N.to("cpu", small), new.flatten()[index_N].cpu()))
    return Changes(whole, patches, checksum(after))
