"""Prefix cache: keys and values of finished sequences. The next turn of a conversation prefills only what is new.

A prompt continues a sequence of its own conversation if it begins with all its tokens. The sequence leaves the cache
with that prompt, and comes back, longer, when the next turn has finished. The cache keeps the newest ones that fit.

Conversations with the same tokens share nothing: keys and values that another batch computed differ in the last bits,
and an evaluation, which a resumed run does not repeat, would change the tokens of training.
"""

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor

from dojang.engine.kv_cache import Prefix

__all__ = ["PrefixCache"]


class PrefixCache:
    """Keys and values of finished sequences, within `budget` bytes; with a budget of 0 it keeps nothing."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._bytes = 0
        self._entries: OrderedDict[Prefix, None] = OrderedDict()
        """The oldest one first. Those newer than an entry decide whether it stays, older ones never do."""
        self._by_conversation: dict[str, list[Prefix]] = {}
        """One per conversation, or some where an agent leads several or a request had several samples."""

    @property
    def enabled(self) -> bool:
        return self._budget > 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, conversation: str, tokens: Sequence[int], keys_LKTD: Tensor, values_LKTD: Tensor) -> None:
        """Keeps the keys and values of these tokens; the oldest ones make room, unless all of it were too little."""
        entry = Prefix(tuple(tokens), conversation)
        entry.set_kv(keys_LKTD, values_LKTD)
        if _size(entry) > self._budget:
            return
        for twin in [each for each in self._by_conversation.get(conversation, ()) if each.tokens == entry.tokens]:
            self._remove(twin)
        self._entries[entry] = None
        self._by_conversation.setdefault(conversation, []).append(entry)
        self._bytes += _size(entry)
        while self._bytes > self._budget:
            self._remove(next(iter(self._entries)))

    def find(self, conversation: str, tokens: tuple[int, ...]) -> Prefix | None:
        """Longest sequence of the conversation that these tokens continue. At least one token is left to prefill, for
        its logits."""
        own = self._by_conversation.get(conversation, ())
        return max((each for each in own if _continues(tokens, each.tokens)), key=_length, default=None)

    def fill(self, prefix: Prefix) -> None:
        """Gives a prefix of which nothing is computed the keys and values of the sequence that it continues, if any."""
        entry = self.find(prefix.conversation, prefix.tokens)
        if entry is not None:
            self._remove(entry)
            prefix.start_from(entry)

    def clear(self) -> None:
        """Forgets everything: after a change of the weights, and where memory runs out."""
        self._entries.clear()
        self._by_conversation.clear()
        self._bytes = 0

    def _remove(self, entry: Prefix) -> None:
        del self._entries[entry]
        self._bytes -= _size(entry)
        own = self._by_conversation[entry.conversation]
        own.remove(entry)
        if not own:
            del self._by_conversation[entry.conversation]


def _continues(tokens: tuple[int, ...], earlier: tuple[int, ...]) -> bool:
    return len(earlier) < len(tokens) and tokens[: len(earlier)] == earlier


def _length(entry: Prefix) -> int:
    return len(entry.tokens)


def _size(entry: Prefix) -> int:
    keys_LKTD, values_LKTD = entry.kv
    return keys_LKTD.nbytes + values_LKTD.nbytes
