"""Where keys and values of sequences are kept: a slot for each that is being decoded, and prompts by themselves.

Slots in use are always the first ones, so that a step works on a plain slice; a sequence that ends is replaced by the
last. All slots are equally long. When a sequence needs more, they grow together, within a budget of memory: longer
slots may mean fewer.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dojang.engines.decoder import Shape
from dojang.errors import ModelError

__all__ = ["Prefix", "Slots"]

_GRAIN = 64
"""Slots are a multiple of this long."""


class Prefix:
    """What several samples have in common: tokens, their keys and values, and the scores of what comes next."""

    def __init__(self, tokens: tuple[int, ...]) -> None:
        self.tokens = tokens
        self.done = 0
        """How many tokens have been read."""
        self.logits_V: Tensor | None = None
        self.keys_LKTD: Tensor | None = None
        self.values_LKTD: Tensor | None = None

    def forget(self) -> None:
        """Whatever was read must be read again, by other weights say."""
        self.done, self.logits_V, self.keys_LKTD, self.values_LKTD = 0, None, None, None


class Slots:
    """The cache of the sequences being decoded."""

    def __init__(self, shape: Shape, dtype: torch.dtype, device: torch.device, *, most: int, budget: int) -> None:
        self._shape = shape
        self._dtype, self._device = dtype, device
        self._most = most
        self._budget = budget
        self.length = 0
        self.capacity = most
        self.keys_LSKTD, self.values_LSKTD = self._allocated(0, 0)

    @property
    def token_bytes(self) -> int:
        """What a token takes."""
        shape = self._shape
        return 2 * shape.layers * shape.kv_heads * shape.head * self._dtype.itemsize

    def fitting(self, length: int) -> int:
        """How many slots there can be if each holds so many tokens."""
        length = max(self.length, -(-length // _GRAIN) * _GRAIN)
        return min(self._most, self._budget // (length * self.token_bytes))

    def make_room(self, length: int, used: int) -> bool:
        """Let every slot hold `length` tokens; False if that has to wait until fewer slots are used.

        ModelError if it could never be.
        """
        if length <= self.length:
            return used < self.capacity
        fitting = self.fitting(length)
        if fitting == 0:
            raise ModelError(
                f"a sequence of {length} tokens takes {length * self.token_bytes / 2**30:.2f} GiB of keys and values, "
                f"and there are {self._budget / 2**30:.2f}; raise rollout.kv_gb or lower rollout.max_tokens"
            )
        if used >= fitting:
            return False
        self._grow(-(-length // _GRAIN) * _GRAIN, fitting, used)
        return True

    def put(self, slots: Sequence[int], prefix: Prefix) -> None:
        """Begin these slots with a prefix."""
        assert prefix.keys_LKTD is not None
        assert prefix.values_LKTD is not None
        place, size = torch.tensor(slots, device=self._device), len(prefix.tokens)
        self.keys_LSKTD[:, place, :, :size] = prefix.keys_LKTD[:, None]
        self.values_LSKTD[:, place, :, :size] = prefix.values_LKTD[:, None]

    def move(self, source: int, target: int, size: int) -> None:
        """Let a slot of `size` tokens take another's place."""
        self.keys_LSKTD[:, target, :, :size] = self.keys_LSKTD[:, source, :, :size]
        self.values_LSKTD[:, target, :, :size] = self.values_LSKTD[:, source, :, :size]

    def release(self) -> None:
        """Give the memory back; the next `make_room` takes it anew."""
        self.keys_LSKTD, self.values_LSKTD = self._allocated(0, 0)
        self.length, self.capacity = 0, self._most

    def _grow(self, length: int, capacity: int, used: int) -> None:
        while True:
            try:
                keys_LSKTD, values_LSKTD = self._allocated(capacity, length)
                break
            except (torch.OutOfMemoryError, RuntimeError):  # a processor's allocator raises the plainer one
                if capacity // 2 <= used:
                    raise
                capacity //= 2
        keys_LSKTD[:, :used, :, : self.length] = self.keys_LSKTD[:, :used]
        values_LSKTD[:, :used, :, : self.length] = self.values_LSKTD[:, :used]
        self.keys_LSKTD, self.values_LSKTD = keys_LSKTD, values_LSKTD
        self.length, self.capacity = length, capacity

    def _allocated(self, capacity: int, length: int) -> tuple[Tensor, Tensor]:
        shape = self._shape
        sizes = (shape.layers, capacity, shape.kv_heads, length, shape.head)
        # Zeros, not whatever was there: attention multiplies what it masks by nothing, and NaN times nothing is NaN.
        keys_LSKTD = torch.zeros(sizes, dtype=self._dtype, device=self._device)
        return keys_LSKTD, torch.zeros_like(keys_LSKTD)
