"""Prefix cache: pages of finished sequences. The next turn of a conversation prefills only what is new.

A prompt hits a finished sequence of the same conversation whose tokens are a prefix of it. A hit moves the pages out of
the cache; when the new turn has finished, the longer sequence goes in. The oldest sequences are evicted first, when the
budget is full and when other sequences need pages.

Conversations with the same tokens share nothing: keys and values that another batch computed differ in the last bits,
and an evaluation, which a resumed run does not repeat, would change the tokens of training.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dojang.engine.kv_cache import Prefix

__all__ = ["PrefixCache"]


@dataclass(eq=False, frozen=True, slots=True)
class _Entry:
    """A finished sequence."""

    conversation: str
    tokens: tuple[int, ...]
    pages: list[int]


class PrefixCache:
    """Pages of finished sequences, at most `budget`; with a budget of 0 it keeps nothing. `drop` takes pages back."""

    def __init__(self, budget: int, drop: Callable[[Sequence[int]], None]) -> None:
        self._budget = budget
        self._drop = drop
        self._pages = 0
        self._entries: OrderedDict[_Entry, None] = OrderedDict()
        """The oldest one first. Those newer than an entry decide whether it stays, older ones never do."""
        self._by_conversation: dict[str, list[_Entry]] = {}
        """One per conversation, or some where an agent leads several or a request had several samples."""

    @property
    def enabled(self) -> bool:
        return self._budget > 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, conversation: str, tokens: Sequence[int], pages: list[int]) -> None:
        """Keeps the pages of these tokens; the oldest sequences make room, unless all of it were too little."""
        if len(pages) > self._budget:
            self._drop(pages)
            return
        entry = _Entry(conversation, tuple(tokens), pages)
        for twin in [each for each in self._by_conversation.get(conversation, ()) if each.tokens == entry.tokens]:
            self._drop_entry(twin)
        self._entries[entry] = None
        self._by_conversation.setdefault(conversation, []).append(entry)
        self._pages += len(entry.pages)
        while self._pages > self._budget:
            self.evict_oldest()

    def continues(self, conversation: str, tokens: tuple[int, ...]) -> bool:
        """Whether these tokens continue a sequence of the conversation."""
        return self._find(conversation, tokens) is not None

    def fill(self, prefix: Prefix) -> None:
        """Gives a prefix of which nothing is computed the pages of the sequence that it continues, if any."""
        entry = self._find(prefix.conversation, prefix.tokens)
        if entry is not None:
            self._remove(entry)
            prefix.pages, prefix.num_computed_tokens = entry.pages, len(entry.tokens)

    def evict_oldest(self) -> bool:
        """Evicts the oldest sequence; False if there is none."""
        if not self._entries:
            return False
        self._drop_entry(next(iter(self._entries)))
        return True

    def clear(self) -> None:
        """Forgets everything, after a change of the weights."""
        while self.evict_oldest():
            pass

    def _find(self, conversation: str, tokens: tuple[int, ...]) -> _Entry | None:
        """Longest sequence of the conversation that these tokens continue. At least one token is left to prefill, for
        its logits."""
        own = self._by_conversation.get(conversation, ())
        return max((each for each in own if _continues(tokens, each.tokens)), key=_length, default=None)

    def _drop_entry(self, entry: _Entry) -> None:
        self._remove(entry)
        self._drop(entry.pages)

    def _remove(self, entry: _Entry) -> None:
        del self._entries[entry]
        self._pages -= len(entry.pages)
        own = self._by_conversation[entry.conversation]
        own.remove(entry)
        if not own:
            del self._by_conversation[entry.conversation]


def _continues(tokens: tuple[int, ...], earlier: tuple[int, ...]) -> bool:
    return len(earlier) < len(tokens) and tokens[: len(earlier)] == earlier


def _length(entry: _Entry) -> int:
    return len(entry.tokens)
