"""Sequences that wait to run, in order, and their prefixes: sequences with the same tokens share one, and its pages."""

from collections import deque
from collections.abc import Collection

from torch import Tensor

from dojang.engine.kv_cache import KvCache, Prefix
from dojang.engine.kv_cache_size import PAGE_TOKENS, pages_for
from dojang.engine.prefix_cache import PrefixCache
from dojang.engine.sequence import Request, Sequence

__all__ = ["WaitingQueue"]

_NO_PREFIX = Prefix(())


class WaitingQueue:
    """Waiting sequences. `running` in the methods is the number of sequences that run: each of them keeps a page in
    reserve. While none runs, the next sequence evicts the others."""

    def __init__(self, cache: KvCache, prefix_cache: PrefixCache) -> None:
        self._cache, self._prefix_cache = cache, prefix_cache
        self._sequences: deque[Sequence] = deque()
        self._prefixes: dict[tuple[str, tuple[int, ...]], Prefix] = {}
        self._copies: list[tuple[int, int]] = []
        """Pages to copy, and where to."""

    def __len__(self) -> int:
        return len(self._sequences)

    def append(self, request: Request, max_tokens: int) -> None:
        """Queue the samples of a request."""
        for index in range(request.n):
            self._sequences.append(Sequence.of(request, index, self._join(request, request.prompt), max_tokens))

    def push_front(self, seq: Sequence, pages: list[int]) -> None:
        """Queue a sequence that ran again, before all others; it needs a prefix of all tokens that it has. Of its pages
        it keeps those that others hold too: dropping them would free nothing."""
        seq.prefix = prefix = self._join(seq.request, seq.request.prompt + tuple(seq.tokens))
        if not prefix.pages:
            prefix.pages = pages
            pages = prefix.reset(self._cache.shared(pages))
        self._cache.drop(pages)
        self._sequences.appendleft(seq)

    def drop(self, requests: Collection[Request]) -> None:
        """Remove the sequences of these requests."""
        for seq in [seq for seq in self._sequences if seq.request in requests]:
            self._leave(seq)
        self._sequences = deque(seq for seq in self._sequences if seq.request not in requests)

    def longest(self, context: int) -> int:
        """Most tokens that one of the sequences may have."""
        return max(min(seq.max_length, context) for seq in self._sequences)

    def clear_prefixes(self) -> None:
        """Drop everything that was prefilled."""
        for prefix in self._prefixes.values():
            self._cache.drop(prefix.reset())

    def prefixes(self, count: int) -> list[Prefix]:
        """Prefixes of the next `count` sequences, in order."""
        return list(dict.fromkeys(seq.prefix for _, seq in zip(range(count), self._sequences, strict=False)))

    def reserve(self, prefix: Prefix, running: int) -> bool:
        """Give a prefix all pages that it lacks; False if there are too few. One that had a part of them would wait for
        the others, be forgotten when pages are short, and begin again."""
        count = pages_for(len(prefix.tokens)) - len(prefix.pages)
        while count and not self._cache.has(count + running):
            if running or not self._evict_others(prefix):
                return False
        prefix.pages += self._cache.take(count)
        return True

    def start_next(self, running: int) -> tuple[Sequence, list[int], Tensor] | None:
        """The next sequence, its pages and the logits of its next token; None if it is not prefilled or there are too
        few pages. Full pages are shared. Of the last one, which it writes into, each sequence has a copy, and the last
        sequence the page itself: call `copy` before the pages are used."""
        if not self._sequences or (logits_V := self._sequences[0].prefix.logits_V) is None:
            return None
        prefix = self._sequences[0].prefix
        full, tail = divmod(len(prefix.tokens), PAGE_TOKENS)
        copied = int(tail > 0 and prefix.waiting > 1)
        alone = prefix.waiting == 1
        while not self._cache.has(copied + running):
            if running:
                return None
            if not self._evict_others(prefix):
                alone, copied = True, 0  # not even a copy fits: the others prefill it again
        if alone:
            pages = prefix.reset()
        else:
            own = self._cache.take(copied)
            self._cache.share(prefix.pages[:full])
            pages = prefix.pages[:full] + own
            self._copies += zip(prefix.pages[full:], pages[full:], strict=True)
        seq = self._sequences.popleft()
        self._leave(seq)
        return seq, pages, logits_V

    def copy(self) -> None:
        """Make the copies that sequences were given."""
        copies, self._copies = self._copies, []  # also if it fails: the pages may be others' next time
        self._cache.copy(copies)

    def evict_last(self, *, shared: bool = False, but: Prefix | None = None) -> bool:
        """Evict the prefilled prefix of the last waiting sequence that frees pages, other than `but`; False if there is
        none. Pages that are shared with other sequences stay, unless `shared`."""
        for prefix in (seq.prefix for seq in reversed(self._sequences)):
            kept = 0 if shared else self._cache.shared(prefix.pages)
            if kept < len(prefix.pages) and prefix is not but:
                self._cache.drop(prefix.reset(kept))
                return True
        return False

    def _evict_others(self, prefix: Prefix) -> bool:
        """While no sequence runs, evict one for the prefix of the next sequence; False if there is none."""
        if prefix is not self._sequences[0].prefix:
            return False
        return self.evict_last(but=prefix) or self.evict_last(but=prefix, shared=True)

    def _join(self, request: Request, tokens: tuple[int, ...]) -> Prefix:
        """Prefix of these tokens, for one more sequence. Sequences with the same tokens share it, such as the first
        turns of a group; one that continues an earlier turn of its conversation only with others of that
        conversation."""
        conversation = request.sampling.conversation
        own = conversation if self._prefix_cache.continues(conversation, tokens) else ""
        prefix = self._prefixes.setdefault((own, tokens), Prefix(tokens, own))
        prefix.waiting += 1
        return prefix

    def _leave(self, seq: Sequence) -> None:
        prefix, seq.prefix = seq.prefix, _NO_PREFIX
        prefix.waiting -= 1
        if not prefix.waiting:
            self._cache.drop(prefix.reset())
            del self._prefixes[prefix.conversation, prefix.tokens]
