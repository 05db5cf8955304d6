"""Where keys and values of sequences are kept: a slot for each that is being decoded, and prompts by themselves.

Slots in use are always the first ones, so that a step works on plain slices; a sequence that ends is replaced by one
behind it (on a GPU, by name only). All slots are equally long. When a sequence needs more, they grow together, within a
budget of memory: longer slots may mean fewer.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from dojang.core.errors import ModelError
from dojang.engine.decoder import Shape
from dojang.engine.kv_cache_size import kv_budget

__all__ = ["Budget", "Prefix", "Slots", "is_out_of_memory", "spare_memory"]

Budget = int | Callable[[], int] | None
"""Bytes for the KV cache, or how to find out when the first sequence comes; None for `spare_memory`."""
_BUDGET = 4 << 30
_GRAIN = 64
"""Slots are a multiple of this long."""
_RUN = 16
"""Fewer are too little work for a call, more are too different."""


class Prefix:
    """What several samples have in common: tokens, their keys and values, and the scores of what comes next."""

    def __init__(self, tokens: tuple[int, ...]) -> None:
        self.tokens = tokens
        self.done = 0
        """How many tokens have been read."""
        self.logits_V: Tensor | None = None
        self._kept: tuple[Tensor, Tensor] | None = None

    @property
    def kept(self) -> tuple[Tensor, Tensor]:
        """Keys and values of its tokens, [L, K, T, D] each."""
        assert self._kept is not None
        return self._kept

    def keep(self, keys_LKTD: Tensor, values_LKTD: Tensor) -> None:
        self._kept = keys_LKTD, values_LKTD

    def make_room(self, shape: Shape, dtype: torch.dtype, device: torch.device) -> None:
        """For keys and values, if there is none yet."""
        if self._kept is None:
            sizes = (2, shape.layers, shape.kv_heads, len(self.tokens), shape.head)
            keys_LKTD, values_LKTD = torch.empty(sizes, dtype=dtype, device=device).unbind()
            self._kept = keys_LKTD, values_LKTD

    def forget(self) -> None:
        """Whatever was read must be read again, by other weights say."""
        self.done, self.logits_V, self._kept = 0, None, None


class Slots:
    """The cache of the sequences being decoded."""

    def __init__(
        self,
        shape: Shape,
        dtype: torch.dtype,
        device: torch.device,
        *,
        most: int,
        budget: Budget,
        scattered: bool = False,
    ) -> None:
        self._shape = shape
        self._dtype, self._device = dtype, device
        self._most = most
        self._allowed = budget
        self._budget = 0
        self._scattered = scattered
        """Whether slots may lie anywhere: a GPU's kernel finds them, and moving one is then no work."""
        self.run = most if scattered else _RUN
        """How many neighbours are looked at together, and so should be about equally long."""
        self.length = 0
        self.capacity = most
        self._places = list(range(most))
        self.keys_LSKTD, self.values_LSKTD = self._allocated(0, 0)

    @property
    def token_bytes(self) -> int:
        """What a token takes."""
        shape = self._shape
        return 2 * shape.layers * shape.kv_heads * shape.head * self._dtype.itemsize

    def fitting(self, length: int) -> int:
        """How many slots there can be if each holds so many tokens."""
        if not self._budget:
            allowed = self._allowed() if callable(self._allowed) else self._allowed
            self._budget = allowed or spare_memory(self._device)
        length = max(self.length, -(-length // _GRAIN) * _GRAIN)
        return min(self._most, self._budget // (length * self.token_bytes) - self._scattered)

    def check(self, length: int) -> None:
        """ModelError if a slot for so many tokens can never be."""
        if self.fitting(length) <= 0:
            raise ModelError(
                f"a sequence of {length} tokens takes {length * self.token_bytes / 2**20:.3g} MiB of keys and values, "
                f"and there are {self._budget / 2**20:.3g}; raise rollout.kv_gb or lower rollout.max_tokens"
            )

    def make_room(self, length: int, used: int) -> bool:
        """Let every slot hold `length` tokens; False if that has to wait until fewer slots are used.

        ModelError if it could never be.
        """
        if length <= self.length:
            return used < self.capacity
        self.check(length)
        fitting = self.fitting(length)
        if used >= fitting:
            return False
        length = -(-length // _GRAIN) * _GRAIN
        if self._scattered:  # growing means recording all graphs anew, so all that is allowed is taken at once
            length = max(length, min(self._shape.context, self._budget // ((fitting + 1) * self.token_bytes)))
        self._grow(length, fitting, used)
        return True

    def fill(self, places: Mapping[Prefix, Sequence[int]]) -> None:
        """Begin each of these slots with its prefix. Only where slots lie in order."""
        for prefix, slots in places.items():
            keys_LKTD, values_LKTD = prefix.kept
            slot, size = torch.tensor(slots, device=self._device), len(prefix.tokens)
            self.keys_LSKTD[:, slot, :, :size] = keys_LKTD[:, None]
            self.values_LSKTD[:, slot, :, :size] = values_LKTD[:, None]

    def place(self, slot: int) -> int:
        """Where a slot is in memory."""
        return self._places[slot]

    @property
    def spare(self) -> int:
        """The place in memory of a slot that nobody uses. Only where slots need not lie in order."""
        return self.capacity

    def move(self, source: int, target: int, size: int) -> None:
        """Let a slot of `size` tokens take another's place."""
        if self._scattered:
            places = self._places
            places[source], places[target] = places[target], places[source]
            return
        self.keys_LSKTD[:, target, :, :size] = self.keys_LSKTD[:, source, :, :size]
        self.values_LSKTD[:, target, :, :size] = self.values_LSKTD[:, source, :, :size]

    def release(self) -> None:
        """Give the memory back; the next `make_room` takes it anew."""
        self.keys_LSKTD, self.values_LSKTD = self._allocated(0, 0)
        self.length, self.capacity, self._budget = 0, self._most, 0
        self._places = list(range(self._most))

    def _grow(self, length: int, capacity: int, used: int) -> None:
        old, places = (self.keys_LSKTD, self.values_LSKTD), self._places[:used]
        size, aside = self.length, not self._scattered
        while True:
            try:
                fresh = self._allocated(capacity, length)
                break
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                if aside and capacity // 2 <= used:
                    if self._scattered:
                        error.with_traceback(None)  # which holds what was allocated
                        self.keys_LSKTD, self.values_LSKTD = self._allocated(self.capacity, size)
                        self._take_over(old, places, size)
                    raise
            if aside:
                capacity //= 2
            else:  # an engine alone on a GPU has no room for two caches
                old, places, aside = self._aside(old, places), list(range(used)), True
        self.keys_LSKTD, self.values_LSKTD = fresh
        self.length, self.capacity = length, capacity
        self._take_over(old, places, size)

    def _aside(self, old: tuple[Tensor, Tensor], places: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Copies the slots in use to main memory and frees the cache. One slot at a time: all at once would need as
        much memory again on the device."""
        sizes = (old[0].shape[0], len(places), *old[0].shape[2:])
        kept = torch.empty(sizes, dtype=self._dtype), torch.empty(sizes, dtype=self._dtype)
        for source_LSKTD, target_LSKTD in zip(old, kept, strict=True):
            for at, place in enumerate(places):
                target_LSKTD[:, at] = source_LSKTD[:, place]
        self.keys_LSKTD, self.values_LSKTD = self._allocated(0, 0)
        return kept

    def _take_over(self, old: tuple[Tensor, Tensor], places: Sequence[int], size: int) -> None:
        """Copies slots of `size` tokens into the first ones."""
        for source_LSKTD, target_LSKTD in zip(old, (self.keys_LSKTD, self.values_LSKTD), strict=True):
            for at, place in enumerate(places):
                target_LSKTD[:, at, :, :size] = source_LSKTD[:, place].to(self._device)
        self._places = list(range(self._most))

    def _allocated(self, capacity: int, length: int) -> tuple[Tensor, Tensor]:
        shape = self._shape
        sizes = (shape.layers, capacity + self._scattered, shape.kv_heads, length, shape.head)
        # Zeros, not whatever was there: attention multiplies what it masks by nothing, and NaN times nothing is NaN.
        keys_LSKTD = torch.zeros(sizes, dtype=self._dtype, device=self._device)
        return keys_LSKTD, torch.zeros_like(keys_LSKTD)


def is_out_of_memory(error: BaseException) -> bool:
    """A GPU's allocator has an error of its own, a processor's only words."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def spare_memory(device: torch.device, *, alone: bool = False) -> int:
    """Bytes for the KV cache where rollout.kv_gb does not say: 4 GiB, or on a GPU a share of what is free now."""
    if device.type != "cuda":
        return _BUDGET
    free, _ = torch.cuda.mem_get_info(device)
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return kv_budget(free + kept, alone=alone)
