"""LRU cache with a limit in bytes."""

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

__all__ = ["ByteCache"]

K = TypeVar("K")
V = TypeVar("V")


class ByteCache(Generic[K, V]):
    """Keeps the values used last, at most `max_bytes` of them but always the newest. Safe to use from several
    threads."""

    def __init__(self, max_bytes: float) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def put(self, key: K, value: V, size: int) -> None:
        """Keeps a value of `size` bytes, unless one is known under this key."""
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = value, size
            self._bytes += size
            while self._bytes > self._max_bytes and len(self._kept) > 1:
                self._bytes -= self._kept.popitem(last=False)[1][1]

    def discard(self, key: K) -> None:
        with self._lock:
            if key in self._kept:
                self._bytes -= self._kept.pop(key)[1]
