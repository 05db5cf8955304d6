"""Encoded weight packs that are being sent to rollout workers.

Workers ask for the same few packs at about the same time, and again after a cut connection: each is encoded once.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dojang.weight_sync.pack import Buffer, encode_parts
from dojang.weight_sync.versions import WeightVersions

__all__ = ["EncodedPack", "PackCache"]

_CHUNK = 2**20
_KEPT = 4
"""Packs kept for each policy. A pack of full weights on a CPU shares the memory of the version."""


@dataclass(frozen=True, slots=True)
class EncodedPack:
    """Bytes of a weight pack."""

    parts: tuple[memoryview, ...]
    size: int
    tag: str
    """Digest of the header, which has the digest of the weights."""

    @classmethod
    def of(cls, parts: list[Buffer]) -> "EncodedPack":
        views = tuple(memoryview(part).cast("B") for part in parts)
        tag = hashlib.blake2b(views[0], digest_size=16).hexdigest()
        return cls(views, sum(map(len, views)), tag)

    def chunks(self, start: int) -> Iterator[bytes]:
        """Yields the bytes from an offset on."""
        for view in self.parts:
            for at in range(min(start, len(view)), len(view), _CHUNK):
                yield bytes(view[at : at + _CHUNK])
            start = max(0, start - len(view))


class PackCache:
    """Encodes packs of the policies' weights, in threads."""

    def __init__(self, weights: Mapping[str, WeightVersions]) -> None:
        self._weights = weights
        self._packs: OrderedDict[tuple[str, int, int | None, bool], asyncio.Task[EncodedPack]] = OrderedDict()

    async def get(self, policy: str, version: int, base: int | None, *, merge: bool) -> EncodedPack:
        """Returns the pack that leads from `base` to `version`. LookupError if the version is not held."""
        key = (policy, version, base, merge)
        if key not in self._packs:
            self._packs[key] = asyncio.create_task(asyncio.to_thread(self._encode, *key))
            while len(self._packs) > _KEPT * len(self._weights):
                self._packs.popitem(last=False)  # requests under way keep it
        task = self._packs[key]
        try:
            return await asyncio.shield(task)  # others may wait for it
        except BaseException:
            if task.done() and self._packs.get(key) is task:
                del self._packs[key]
            raise

    def _encode(self, policy: str, version: int, base: int | None, merge: bool) -> EncodedPack:
        return EncodedPack.of(encode_parts(self._weights[policy].pack(version, base, merge=merge)))
