"""Published versions of the weights, kept for engines that load them at different times.

The trainer publishes from its thread while engines fetch from others. A published version never changes: it is a copy,
except for LazyWeights, of which each is made when an engine reads it.
With `deltas`, each version is compared bit by bit with the one before it, on the device that holds them: after a step
with a small learning rate most elements are unchanged in bfloat16. Only the positions of changed elements are kept;
their values are read from the version that is asked for, so a chain of deltas has the last value of each element.
"""

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import torch
from torch import Tensor

from dojang.core.checksum import checksum
from dojang.core.lazy_weights import LazyWeight, LazyWeights, joined
from dojang.protocols import Changes, Factors
from dojang.weight_sync.delta_codec import Positions, changes_at, compare, union
from dojang.weight_sync.lora_merge import merged_weights
from dojang.weight_sync.pack import Pack

__all__ = ["DELTA_CHAIN", "WeightVersions"]

DELTA_CHAIN = 8
"""Number of deltas that are kept for engines that get deltas: an engine may miss this many versions less one."""

NO_FACTORS: Factors = MappingProxyType({})


class WeightVersions:
    """A WeightStore with the newest versions, and older ones while they are leased."""

    def __init__(self, dtype: torch.dtype, keep: int = 1, *, deltas: int = 0) -> None:
        """`keep`: number of newest versions to keep. `deltas`: number of newest versions whose changes since the
        version before are kept; 0 compares nothing."""
        if keep < 1 or deltas < 0:
            raise ValueError(f"keep={keep} must be at least 1, and deltas={deltas} at least 0")
        self._dtype, self._keep = dtype, keep
        self._compare = bool(deltas)
        self._versions: dict[int, _Version] = {}
        """In the order of publication."""
        self._deltas: deque[_Delta] = deque(maxlen=deltas)
        """Each starts where the one before ends."""
        self._same_base: set[int] = set()
        """Versions with the LoRA base weights of the newest."""
        self._leases: dict[int, int] = {}
        self._lock = threading.Lock()
        """Guards the fields above; held only for look-ups."""
        self._publishing = threading.Lock()

    def newest(self) -> int:
        """Return the version that was published last."""
        with self._lock:
            if not self._versions:
                raise LookupError("no weights have been published yet")
            return next(reversed(self._versions))

    def publish(
        self, version: int, tensors: Mapping[str, Tensor], factors: Factors = NO_FACTORS, checksum: str = ""
    ) -> None:
        """Publish, as a WeightStore. `checksum`: that of the weights with factors merged, if it is known."""
        with self._publishing:
            with self._lock:
                before = next(reversed(self._versions.values()), None)
            after = self._copy(version, tensors, factors, before, checksum)
            positions = None
            if self._compare and before is not None:
                positions = compare(before.weights, after.weights)
                _ = before.checksum  # computed here, not while the lock is held
            with self._lock:
                known = {number for delta in self._deltas for number in (delta.base, delta.version)}
                if version in known or positions is None:  # a number that stands for two sets of weights has no delta
                    self._deltas.clear()
                if before is not None and positions is not None and before.number != version:
                    self._deltas.append(_Delta(before.number, before.checksum, version, positions))
                if before is None or before.base is not after.base:
                    self._same_base.clear()
                self._same_base.add(version)
                self._versions.pop(version, None)
                self._versions[version] = after
                self._drop_old()

    def fetch(self, version: int) -> Mapping[str, Tensor]:
        found = self._held(version).weights
        if not isinstance(found, LazyWeights):
            found = dict(found)
            _wait_for_device(found)
        return found

    def changes(self, base: int, version: int) -> Changes | None:
        with self._lock:
            target, chain = self._versions.get(version), self._chain(base, version)
        if target is None or chain is None:
            return None
        tensors, patches = changes_at(union(chain), target.weights)
        return Changes(tensors, patches, target.checksum)

    def pack(self, version: int, base: int | None = None, *, merge: bool = False) -> Pack:
        """Return the smallest pack that leads a receiver of version `base` to `version`: LoRA factors, a delta, or full
        weights. `merge` sends merged weights instead of factors. LookupError if `version` is not held."""
        with self._lock:
            target, known = self._find(version), base in self._same_base
            newest = next(reversed(self._versions.values()))
        if target.factors and not merge:
            if base is not None and known and target.base is newest.base:
                return target.factors_pack(base)
            return Pack("full", version, None, "", target.checksum, target.base.tensors, factors=target.factors)
        delta = None if base is None else self.delta(base, version)
        return delta or Pack("full", version, None, "", target.checksum, target.weights)

    def factors(self, version: int) -> Pack | None:
        """Return the LoRA factors of a version, for a receiver of its base weights; None if it has none. LookupError if
        the version is not held."""
        target = self._held(version)
        return target.factors_pack(version) if target.factors else None

    def delta(self, base: int, version: int) -> Pack | None:
        """Return the changes from `base` to `version` as a pack; None if they are not known."""
        with self._lock:
            start = next((delta.base_checksum for delta in self._deltas if delta.base == base), None)
        changes = None if start is None else self.changes(base, version)
        if start is None or changes is None:
            return None
        return Pack("delta", version, base, start, changes.checksum, changes.tensors, changes.patches)

    def checksum(self, version: int) -> str:
        """Return the checksum of the weights published under `version`."""
        return self._held(version).checksum

    @contextmanager
    def lease(self, version: int) -> Iterator[None]:
        """Keep `version` until the end of this context. LookupError if it is not held any more."""
        with self._lock:
            self._find(version)
            self._leases[version] = self._leases.get(version, 0) + 1
        try:
            yield
        finally:
            with self._lock:
                self._leases[version] -= 1
                self._drop_old()

    def held(self) -> list[int]:
        """Return the versions that can be fetched, in the order of publication."""
        with self._lock:
            return list(self._versions)

    def _copy(
        self, version: int, tensors: Mapping[str, Tensor], factors: Factors, before: "_Version | None", known: str
    ) -> "_Version":
        if isinstance(tensors, LazyWeights):
            base = _Base(_in_dtype(tensors, self._dtype))
        else:
            copied = {name: tensor.detach().to(self._dtype, copy=True) for name, tensor in tensors.items()}
            base = _Base(copied)
            if factors and before is not None:
                base = _Base(_updated(before.base.tensors, copied)) if copied else before.base
        if unknown := factors.keys() - base.tensors.keys():
            raise LookupError(f"factors were given for {min(unknown)}, which is not a weight")
        kept = {name: (b.detach().clone(), a.detach().clone()) for name, (b, a) in factors.items()}
        _wait_for_device(base.tensors)
        return _Version(version, base, kept, self._dtype, known)

    def _chain(self, base: int, version: int) -> "list[Positions] | None":
        """Deltas that lead from one version to another; None if one is missing."""
        if not self._compare:
            return None
        if base == version:
            return []
        chain: list[Positions] = []
        for delta in self._deltas:
            if delta.base == base or chain:
                chain.append(delta.positions)
            if delta.version == version:
                return chain or None
        return None

    def _held(self, version: int) -> "_Version":
        with self._lock:
            return self._find(version)

    def _find(self, version: int) -> "_Version":
        if version not in self._versions:
            held = ", ".join(map(str, self._versions)) or "none"
            raise LookupError(f"weights version {version} is not held; the store has {held}")
        return self._versions[version]

    def _drop_old(self) -> None:
        newest = list(self._versions)[-self._keep :]
        self._leases = {number: count for number, count in self._leases.items() if count}
        self._versions = {
            number: each for number, each in self._versions.items() if number in newest or number in self._leases
        }


@dataclass(frozen=True)
class _Delta:
    base: int
    base_checksum: str
    version: int
    positions: Positions


class _Base:
    """Weights that LoRA factors are added to. Versions with the same ones share this object."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors

    @cached_property
    def checksum(self) -> str:
        return checksum(self.tensors)


@dataclass(frozen=True)
class _Version:
    number: int
    base: _Base
    factors: Mapping[str, tuple[Tensor, Tensor]]
    dtype: torch.dtype
    known: str
    """Checksum of the weights, if the publisher knew it."""

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The weights, each merged with its factors when it is read."""
        return merged_weights(self.base.tensors, self.factors, self.dtype) if self.factors else self.base.tensors

    @cached_property
    def checksum(self) -> str:
        return self.known or (checksum(self.weights) if self.factors else self.base.checksum)

    def factors_pack(self, base: int) -> Pack:
        return Pack("factors", self.number, base, self.base.checksum, self.checksum, factors=self.factors)


def _updated(before: Mapping[str, Tensor], some: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    return joined(before, some) if isinstance(before, LazyWeights) else {**before, **some}


def _in_dtype(tensors: LazyWeights, dtype: torch.dtype) -> LazyWeights:
    def convert(each: LazyWeight) -> LazyWeight:
        alike = torch.empty_like(each.like, dtype=dtype, device="meta")
        return LazyWeight(alike, lambda: each.make().detach().to(dtype))

    return LazyWeights({name: convert(each) for name, each in tensors.weights.items()})


def _wait_for_device(tensors: Mapping[str, Tensor]) -> None:
    """Wait for copies under way: another thread may read them on another CUDA stream. What is lazy has none."""
    if isinstance(tensors, LazyWeights):
        return
    for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
