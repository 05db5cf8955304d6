"""Prefix cache: keys and values of finished sequences. The next turn of a conversation prefills only what is new.

A prompt continues a sequence if it begins with all its tokens. The sequence leaves the cache with that prompt, and
comes back, longer, when the next turn has finished. The cache keeps the newest ones that fit. A prompt that merely
begins like another conversation finds nothing; conversations with the same tokens share what they find.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from dojang.engine.kv_cache import Prefix

__all__ = ["PrefixCache"]

_Key = tuple[int, int]
"""Number of tokens of a sequence, and their hash."""
_BASE = 0x9E3779B97F4A7C15
"""An odd number: its powers modulo 2**64 do not vanish."""


class PrefixCache:
    """Keys and values of finished sequences, within `budget` bytes; with a budget of 0 it keeps nothing."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._bytes = 0
        self._entries: OrderedDict[_Key, Prefix] = OrderedDict()
        """The oldest one first."""
        self._lengths: Counter[int] = Counter()

    @property
    def enabled(self) -> bool:
        return self._budget > 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, tokens: Sequence[int], keys_LKTD: Tensor, values_LKTD: Tensor) -> None:
        """Keeps the keys and values of these tokens; the oldest ones make room, unless all of it were too little."""
        entry = Prefix(tuple(tokens))
        entry.set_kv(keys_LKTD, values_LKTD)
        if _size(entry) > self._budget:
            return
        key = len(tokens), int(_hashes(tokens)[-1])
        self._remove(key)
        self._entries[key] = entry
        self._lengths[key[0]] += 1
        self._bytes += _size(entry)
        while self._bytes > self._budget:
            self._remove(next(iter(self._entries)))

    def fill(self, prefix: Prefix) -> None:
        """Gives a prefix of which nothing is computed the keys and values of the longest sequence that it continues. At
        least one token is left to prefill, for its logits."""
        lengths = [length for length in self._lengths if length < len(prefix.tokens)]
        if not lengths:
            return
        hash_N = _hashes(prefix.tokens)
        for length in sorted(lengths, reverse=True):
            entry = self._entries.get((length, int(hash_N[length - 1])))
            if entry is not None and entry.tokens == prefix.tokens[:length]:
                self._remove((length, int(hash_N[length - 1])))
                prefix.start_from(entry)
                return

    def clear(self) -> None:
        """Forgets everything: after a change of the weights, and where memory runs out."""
        self._entries.clear()
        self._lengths.clear()
        self._bytes = 0

    def _remove(self, key: _Key) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        self._bytes -= _size(entry)
        self._lengths[key[0]] -= 1
        if not self._lengths[key[0]]:
            del self._lengths[key[0]]


def _hashes(tokens: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Hash of each beginning of the tokens: the polynomial in _BASE with the tokens as coefficients, modulo 2**64."""
    token_N = np.asarray(tokens, dtype=np.uint64) + np.uint64(1)  # token 0 counts too
    power_N = np.full(len(token_N), _BASE, dtype=np.uint64)
    found: np.ndarray[tuple[int], np.dtype[np.uint64]] = np.cumsum(token_N * np.cumprod(power_N), dtype=np.uint64)
    return found


def _size(entry: Prefix) -> int:
    keys_LKTD, values_LKTD = entry.kv
    return keys_LKTD.nbytes + values_LKTD.nbytes
