"""The KV cache: keys and values of all sequences being decoded, one fixed-length slot per sequence.

`KvCache` is one tensor of keys and one of values, [layers, slots, kv_heads, length, head_dim]. The slots in use are the
first ones, so that a decode step works on plain slices. When a sequence finishes, a later one takes its slot: by a copy
on a CPU, by swapping entries of a slot table on a GPU. All slots have the same length. They grow together when a
sequence needs more, within a memory budget: longer slots may mean fewer of them.

`Prefix` holds the keys and values of a prefilled prompt until its samples enter the cache (shared by a group).
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from dojang.core.errors import ModelError
from dojang.core.out_of_memory import is_out_of_memory
from dojang.engine.kv_cache_size import DEFAULT_BYTES, fitting_slots, kv_budget, largest_slot_length, slot_length
from dojang.engine.shape import Shape

__all__ = ["Budget", "KvCache", "Prefix", "default_kv_cache_bytes"]

Budget = int | Callable[[], int] | None
"""Bytes for the KV cache, or a function that finds them at the first request; None: `default_kv_cache_bytes`."""
_SLOTS_PER_CALL = 16
"""Slots per attention call on a CPU: fewer are too little work for a call, more differ too much in length."""


class KvCache:
    """Keys and values of the sequences being decoded."""

    def __init__(
        self,
        shape: Shape,
        dtype: torch.dtype,
        device: torch.device,
        *,
        max_slots: int,
        budget: Budget,
        indirect: bool = False,
    ) -> None:
        self._shape = shape
        self._dtype, self._device = dtype, device
        self._max_slots = max_slots
        self._allowed = budget
        self._budget = 0
        self._indirect = indirect
        """Whether kernels find slots through a slot table (GPU), so that moving a sequence copies nothing."""
        self.slots_per_call = max_slots if indirect else _SLOTS_PER_CALL
        """Neighbouring slots that one attention call covers; their sequences should have similar lengths."""
        self.length = 0
        self.capacity = max_slots
        self._slot_table = list(range(max_slots))
        self.keys_LSKTD, self.values_LSKTD = self._allocate(0, 0)

    @property
    def token_bytes(self) -> int:
        """Bytes of keys and values per token."""
        shape = self._shape
        return 2 * shape.layers * shape.kv_heads * shape.head * self._dtype.itemsize

    def max_slots_for(self, length: int) -> int:
        """Number of slots of `length` tokens that fit into the budget."""
        if not self._budget:
            allowed = self._allowed() if callable(self._allowed) else self._allowed
            self._budget = allowed or default_kv_cache_bytes(self._device)
        length = max(self.length, slot_length(length))
        return fitting_slots(length, self.token_bytes, self._budget, self._max_slots, indirect=self._indirect)

    def check(self, length: int) -> None:
        """Raise ModelError if a sequence of `length` tokens can never fit."""
        if self.max_slots_for(length) <= 0:
            raise ModelError(
                f"a sequence of {length} tokens needs {length * self.token_bytes / 2**20:.3g} MiB of KV cache, and the "
                f"cache has {self._budget / 2**20:.3g} MiB; raise rollout.engine.kv_cache_gb or lower "
                "rollout.max_tokens"
            )

    def reserve(self, length: int, used: int) -> bool:
        """Make slots long enough for `length` tokens and one slot free; False if fewer than `used` slots must be in
        use first. ModelError if the length can never fit."""
        if length <= self.length:
            return used < self.capacity
        self.check(length)
        max_slots = self.max_slots_for(length)
        if used >= max_slots:
            return False
        length = slot_length(length)
        if self._indirect:  # growing invalidates all CUDA graphs, so take all that the budget allows at once
            length = largest_slot_length(length, max_slots, self.token_bytes, self._budget, self._shape.context)
        self._grow(length, max_slots, used)
        return True

    def write_prefixes(self, slots_of: Mapping["Prefix", Sequence[int]]) -> None:
        """Copy each prefix into its slots. CPU only: the slots must lie in order."""
        for prefix, slots in slots_of.items():
            keys_LKTD, values_LKTD = prefix.kv
            slot, size = torch.tensor(slots, device=self._device), len(prefix.tokens)
            self.keys_LSKTD[:, slot, :, :size] = keys_LKTD[:, None]
            self.values_LSKTD[:, slot, :, :size] = values_LKTD[:, None]

    def read(self, slot: int, size: int) -> tuple[Tensor, Tensor]:
        """Copies of the keys and values of a slot's first `size` tokens, [L, K, T, D] each."""
        place = self._slot_table[slot]
        return self.keys_LSKTD[:, place, :, :size].clone(), self.values_LSKTD[:, place, :, :size].clone()

    def physical_slot(self, slot: int) -> int:
        """Index of a slot in the tensors."""
        return self._slot_table[slot]

    @property
    def dummy_slot(self) -> int:
        """Physical index of a slot that padding rows write into. GPU only."""
        return self.capacity

    def move(self, source: int, target: int, size: int) -> None:
        """Move a sequence of `size` tokens to another slot."""
        if self._indirect:
            table = self._slot_table
            table[source], table[target] = table[target], table[source]
            return
        self.keys_LSKTD[:, target, :, :size] = self.keys_LSKTD[:, source, :, :size]
        self.values_LSKTD[:, target, :, :size] = self.values_LSKTD[:, source, :, :size]

    def release(self) -> None:
        """Free the memory; the next `reserve` allocates it again."""
        self.keys_LSKTD, self.values_LSKTD = self._allocate(0, 0)
        self.length, self.capacity, self._budget = 0, self._max_slots, 0
        self._slot_table = list(range(self._max_slots))

    def _grow(self, length: int, capacity: int, used: int) -> None:
        old, slots = (self.keys_LSKTD, self.values_LSKTD), self._slot_table[:used]
        size, offloaded = self.length, not self._indirect
        while True:
            try:
                fresh = self._allocate(capacity, length)
                break
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                if offloaded and capacity // 2 <= used:
                    if self._indirect:
                        error.with_traceback(None)  # the traceback keeps the failed allocations alive
                        self.keys_LSKTD, self.values_LSKTD = self._allocate(self.capacity, size)
                        self._restore(old, slots, size)
                    raise
            if offloaded:
                capacity //= 2
            else:  # an engine that fills its GPU cannot hold two caches at once
                old, slots, offloaded = self._offload(old, slots), list(range(used)), True
        self.keys_LSKTD, self.values_LSKTD = fresh
        self.length, self.capacity = length, capacity
        self._restore(old, slots, size)

    def _offload(self, old: tuple[Tensor, Tensor], slots: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Copy the slots in use to main memory and free the cache. One slot at a time: all at once would need as much
        memory again on the device."""
        sizes = (old[0].shape[0], len(slots), *old[0].shape[2:])
        offloaded = torch.empty(sizes, dtype=self._dtype), torch.empty(sizes, dtype=self._dtype)
        for source_LSKTD, target_LSKTD in zip(old, offloaded, strict=True):
            for at, slot in enumerate(slots):
                target_LSKTD[:, at] = source_LSKTD[:, slot]
        self.keys_LSKTD, self.values_LSKTD = self._allocate(0, 0)
        return offloaded

    def _restore(self, old: tuple[Tensor, Tensor], slots: Sequence[int], size: int) -> None:
        """Copy slots of `size` tokens into the first slots of the new tensors."""
        for source_LSKTD, target_LSKTD in zip(old, (self.keys_LSKTD, self.values_LSKTD), strict=True):
            for at, slot in enumerate(slots):
                target_LSKTD[:, at, :, :size] = source_LSKTD[:, slot].to(self._device)
        self._slot_table = list(range(self._max_slots))

    def _allocate(self, capacity: int, length: int) -> tuple[Tensor, Tensor]:
        shape = self._shape
        sizes = (shape.layers, capacity + self._indirect, shape.kv_heads, length, shape.head)
        # Zeros, not uninitialized memory: attention multiplies masked values by 0, and NaN times 0 is NaN.
        keys_LSKTD = torch.zeros(sizes, dtype=self._dtype, device=self._device)
        return keys_LSKTD, torch.zeros_like(keys_LSKTD)


class Prefix:
    """Prefilled tokens that several samples share: keys and values, and the logits of the next token."""

    def __init__(self, tokens: tuple[int, ...], conversation: str = "") -> None:
        self.tokens = tokens
        self.conversation = conversation
        """Conversation whose earlier turns it continues (prefix_cache.py), if any."""
        self.num_computed_tokens = 0
        """Tokens prefilled so far."""
        self.logits_V: Tensor | None = None
        self._kv: tuple[Tensor, Tensor] | None = None
        self._source: Prefix | None = None
        """Prefix with the first tokens' keys and values, until those are copied."""

    @property
    def kv(self) -> tuple[Tensor, Tensor]:
        """Keys and values of the tokens, [L, K, T, D] each."""
        assert self._kv is not None
        return self._kv

    def set_kv(self, keys_LKTD: Tensor, values_LKTD: Tensor) -> None:
        self._kv = keys_LKTD, values_LKTD

    def start_from(self, source: "Prefix") -> None:
        """Continue the tokens of `source`, whose keys and values are all computed."""
        self._source, self.num_computed_tokens = source, len(source.tokens)

    def allocate(self, shape: Shape, dtype: torch.dtype, device: torch.device) -> None:
        """Allocate keys and values unless that was done."""
        if self._kv is None:
            sizes = (2, shape.layers, shape.kv_heads, len(self.tokens), shape.head)
            keys_LKTD, values_LKTD = torch.empty(sizes, dtype=dtype, device=device).unbind()
            self._kv = keys_LKTD, values_LKTD
        if self._source is not None:
            for target_LKTD, source_LKTD in zip(self._kv, self._source.kv, strict=True):
                target_LKTD[:, :, : len(self._source.tokens)] = source_LKTD
            self._source = None

    def clear(self) -> None:
        """Drop all results, so that the tokens are prefilled again (after a weight update, for example)."""
        self.num_computed_tokens, self.logits_V, self._kv, self._source = 0, None, None, None


def default_kv_cache_bytes(
    device: torch.device, *, alone: bool = False, reserved: Callable[[], int] | None = None
) -> int:
    """Default size of the KV cache: 4 GiB on a CPU, a share of the free memory on a GPU. `reserved` tells how much
    trainers on the same GPU will still allocate."""
    if device.type != "cuda":
        return DEFAULT_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return kv_budget(free + cached, alone=alone, reserved=None if reserved is None else reserved())
