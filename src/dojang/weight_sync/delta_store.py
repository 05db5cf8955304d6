"""Weight store that computes what changed between two versions.

After a step with a small learning rate most elements are unchanged in bfloat16. Versions are compared bit by bit on the
device that holds them, while both exist; only the newest is kept.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from dojang.core.checksum import bits, checksum
from dojang.protocols import Changes, Factors, Patch
from dojang.weight_sync.in_memory import NONE, MemoryWeights

__all__ = ["DeltaWeights", "difference"]


class DeltaWeights(MemoryWeights):
    """A WeightStore with the changes since the previous version."""

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
    """Return the changes from `before` to `after`; None if names, shapes or types differ. A weight with most elements
    changed is sent in full: its indices would take more than the values."""
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
