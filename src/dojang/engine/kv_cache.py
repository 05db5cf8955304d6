"""The KV cache: keys and values of all sequences, in pages of `PAGE_TOKENS` tokens that lie anywhere.

`KvCache` is one tensor of keys and one of values, [layers, pages, kv_heads, page tokens, head_dim]. Every running
sequence has a row of the page table, which names its pages in order. A sequence takes a page when it needs one, so
memory holds the tokens that there are, not those that there may be. Samples of one prompt share its full pages, and the
next turn of a conversation continues the pages of the last one (prefix_cache.py).

`Prefix` holds the pages of a prompt until its samples run.
"""

from collections.abc import Callable, Sequence
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dojang.core.errors import ModelError
from dojang.core.out_of_memory import is_out_of_memory
from dojang.engine.kv_cache_size import DEFAULT_BYTES, PAGE_TOKENS, kv_budget, num_pages, pages_for
from dojang.engine.page_pool import PagePool
from dojang.engine.shape import Shape

__all__ = ["Budget", "KvCache", "Prefix", "Slots", "default_kv_cache_bytes"]

Budget = int | Callable[[], int] | None
"""Bytes for the KV cache, or a function that finds them at the first request; None: `default_kv_cache_bytes`."""
Slots = tuple[Tensor, Tensor]
"""Page of each token, and its place in that page."""
_PAGES_PER_COPY = 32
"""Pages copied at a time: copies go through as much other memory."""


class KvCache:
    """Keys and values of sequences, and the page table of those that run."""

    def __init__(
        self,
        shape: Shape,
        dtype: torch.dtype,
        device: torch.device,
        *,
        max_num_seqs: int,
        budget: Budget,
        prefix_cache: int = 0,
        zeroed: bool = True,
    ) -> None:
        """`budget` for the sequences that run, and bytes of `prefix_cache`, which come on top. `zeroed`: for torch's
        attention, which multiplies masked values by 0; NaN times 0 is NaN."""
        self._shape, self._dtype, self._device = shape, dtype, device
        self._max_num_seqs = max_num_seqs
        self._allowed, self._prefix_cache, self._zeroed = budget, prefix_cache, zeroed
        self._pages = 0
        """Number of pages; 0 until the first request, when the budget is known."""
        self._pool = PagePool(0)
        self._rows: list[list[int]] = []
        self.page_table: NDArray[np.int32] = np.zeros((max_num_seqs, pages_for(shape.context)), np.int32)
        """Pages of each running sequence, [rows, pages]; 0 where it has none."""
        self.on_pressure: Callable[[], bool] = bool
        """Called when there are too few free pages: evicts a finished sequence, or returns False."""
        self.keys_LPKTD, self.values_LPKTD = self._allocate(0)

    @property
    def token_bytes(self) -> int:
        """Bytes of keys and values per token."""
        shape = self._shape
        return 2 * shape.layers * shape.kv_heads * shape.head * self._dtype.itemsize

    @property
    def page_bytes(self) -> int:
        return PAGE_TOKENS * self.token_bytes

    def check(self, length: int) -> None:
        """Raise ModelError if a sequence of `length` tokens can never fit."""
        needed, there = pages_for(length), max(0, self._size() - 1)
        if needed > there:
            raise ModelError(
                f"a sequence of {length} tokens needs {needed * self.page_bytes / 2**20:.3g} MiB of KV cache, and the "
                f"cache has {there * self.page_bytes / 2**20:.3g} MiB; raise rollout.engine.kv_cache_gb or lower "
                "rollout.max_tokens"
            )

    @property
    def allocated(self) -> bool:
        return self.keys_LPKTD.shape[1] > 0

    def reserve(self, length: int) -> None:
        """Allocate the memory: all of the budget, or as much as there is if a sequence of `length` tokens fits."""
        self.check(length)
        size = self._size()
        while True:
            try:
                self.keys_LPKTD, self.values_LPKTD = self._allocate(size)
                break
            except RuntimeError as error:
                if not is_out_of_memory(error) or size // 2 <= pages_for(length):
                    raise
            size //= 2
        self._pages, self._pool = size, PagePool(size)
        self._clear([0])

    def release(self) -> None:
        """Free the memory, which no sequence uses; the next `reserve` allocates it again."""
        self.keys_LPKTD, self.values_LPKTD = self._allocate(0)
        self._pages, self._pool = 0, PagePool(0)

    # Pages ------------------------------------------------------------------------------------------------------------

    def has(self, count: int) -> bool:
        """Whether `count` pages are free, after freeing what is not needed."""
        while self._pool.free < count:
            if not self.on_pressure():
                return False
        return True

    def take(self, count: int) -> list[int]:
        """Free pages, with one reference; call `has` first."""
        pages = self._pool.take(count)
        try:
            self._clear(pages)
        except BaseException:
            self._pool.drop(pages)
            raise
        return pages

    def share(self, pages: Sequence[int]) -> None:
        self._pool.share(pages)

    def shared(self, pages: Sequence[int]) -> int:
        """Number of leading pages with more than one reference."""
        return self._pool.shared(pages)

    def drop(self, pages: Sequence[int]) -> None:
        """Drop a reference to each page."""
        self._pool.drop(pages)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy the first page of each pair into the second one."""
        for first in range(0, len(pairs), _PAGES_PER_COPY):
            source_N, target_N = torch.tensor(pairs[first : first + _PAGES_PER_COPY], device=self._device).unbind(1)
            for each_LPKTD in (self.keys_LPKTD, self.values_LPKTD):
                each_LPKTD.index_copy_(1, target_N, each_LPKTD.index_select(1, source_N))

    def slots(self, parts: Sequence[tuple["Prefix", int, int]]) -> "Slots":
        """Slots of the tokens [start, end) of some prefixes."""
        places = np.concatenate([np.arange(start, end) for _, start, end in parts])
        pages = [np.asarray(prefix.pages)[np.arange(start, end) // PAGE_TOKENS] for prefix, start, end in parts]
        page_N = torch.from_numpy(np.concatenate(pages)).to(self._device)
        return page_N, torch.from_numpy(places % PAGE_TOKENS).to(self._device)

    def store(self, layer: int, slots: "Slots", k_NKD: Tensor, v_NKD: Tensor) -> None:
        """Store a layer's keys and values of some tokens in their slots."""
        page_N, place_N = slots
        self.keys_LPKTD[layer][page_N, :, place_N] = k_NKD
        self.values_LPKTD[layer][page_N, :, place_N] = v_NKD

    def read(self, layer: int, pages: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
        """Copies of the keys and values of the first `tokens` tokens in these pages, [K, T, D] each; of several
        sequences, if `pages` has a row for each, [N, K, T, D]."""
        keys_PKTD, values_PKTD = self.keys_LPKTD[layer][pages], self.values_LPKTD[layer][pages]
        keys_KTD, values_KTD = (each.transpose(-4, -3).flatten(-3, -2) for each in (keys_PKTD, values_PKTD))
        return keys_KTD[..., :tokens, :], values_KTD[..., :tokens, :]

    # Rows of the page table -------------------------------------------------------------------------------------------

    def enter(self, pages: list[int]) -> None:
        """Give the next row to a sequence that holds these pages."""
        self.page_table[len(self._rows), : len(pages)] = pages
        self._rows.append(pages)

    def extend(self, rows: Sequence[int], tokens: Sequence[int]) -> bool:
        """Take the pages that these rows lack for `tokens` of each; False if there are too few."""
        held = self._rows
        short = [(row, n) for row, n in zip(rows, tokens, strict=True) if n > len(held[row]) * PAGE_TOKENS]
        if not short:
            return True
        missing = [pages_for(n) - len(held[row]) for row, n in short]
        if not self.has(sum(missing)):
            return False
        fresh = iter(self.take(sum(missing)))
        for (row, _), count in zip(short, missing, strict=True):
            pages = held[row]
            pages += islice(fresh, count)
            self.page_table[row, len(pages) - count : len(pages)] = pages[-count:]
        return True

    @property
    def used_width(self) -> int:
        """Columns of the page table that rows use."""
        return max(map(len, self._rows))

    def leave(self, row: int) -> list[int]:
        """Remove a row and return its pages, which the caller holds now. The last row takes its place."""
        pages, last = self._rows[row], len(self._rows) - 1
        self._rows[row] = self._rows[last]
        self.page_table[row] = self.page_table[last]
        self.page_table[last, : len(self._rows.pop())] = 0
        return pages

    def _size(self) -> int:
        """Number of pages that there are, or will be. Also called from the threads of callers."""
        pages = self._pages
        if not pages:
            allowed = self._allowed() if callable(self._allowed) else self._allowed
            budget = allowed or default_kv_cache_bytes(self._device)
            pages = num_pages(budget, self.token_bytes, self._max_num_seqs, self._shape.context)
            self._pages = pages = pages + self._prefix_cache // self.page_bytes
        return pages

    def _clear(self, pages: Sequence[int]) -> None:
        if self._zeroed and pages:
            for each_LPKTD in (self.keys_LPKTD, self.values_LPKTD):
                each_LPKTD[:, torch.tensor(pages, device=self._device)] = 0

    def _allocate(self, pages: int) -> tuple[Tensor, Tensor]:
        """Memory that is not written to: on a CPU pages take real memory when they are first used."""
        shape = self._shape
        sizes = (2, shape.layers, pages, shape.kv_heads, PAGE_TOKENS, shape.head)
        keys_LPKTD, values_LPKTD = torch.empty(sizes, dtype=self._dtype, device=self._device).unbind()
        return keys_LPKTD, values_LPKTD


class Prefix:
    """Prefilled tokens that several samples share: the pages of their keys and values, and the next token's logits."""

    def __init__(self, tokens: tuple[int, ...], conversation: str = "") -> None:
        self.tokens = tokens
        self.conversation = conversation
        """Conversation whose earlier turns it continues (prefix_cache.py), if any."""
        self.waiting = 0
        """Sequences that wait for it."""
        self.num_computed_tokens = 0
        """Tokens prefilled so far."""
        self.logits_V: Tensor | None = None
        self.pages: list[int] = []

    def reset(self, kept: int = 0) -> list[int]:
        """Forget all results but those in the first `kept` pages, so that the other tokens, at least one, are prefilled
        again. Returns the other pages, which the caller holds now."""
        kept = min(kept, (len(self.tokens) - 1) // PAGE_TOKENS)
        pages, self.pages = self.pages[kept:], self.pages[:kept]
        self.num_computed_tokens, self.logits_V = kept * PAGE_TOKENS, None
        return pages


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
