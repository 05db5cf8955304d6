"""Speculative decoding by n-grams: guesses the next tokens of samples from their prompt and from all samples of it.

A decode step that verifies guesses computes one more row for each, and samples after every right one: several tokens
from one pass over the weights. Nothing is lost by it. Every token has its own random number (rng.py), so the token
sampled from the model's logits is the same with a guess as without.

What follows an n-gram is counted over the prompt and all samples of a request so far, also finished ones. The longest
n-gram that was seen before decides; its commonest next token is guessed while that is probable enough.
"""

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from heapq import nlargest
from weakref import WeakKeyDictionary

from dojang.engine.sequence import Request, Sequence

__all__ = ["NgramDrafts"]

_SIZES = (3, 2, 1)
"""Tokens of an n-gram, the longest first."""
_LONGEST = _SIZES[0]
_DOUBT = 0.5
"""Added to the number of times that an n-gram was seen, so that once is no certainty."""
_LEAST_CHANCE = 0.1
"""Guesses less probable than this are left out."""
_MOST_LEARNED = 2**17
"""Tokens counted per request; each takes up to 800 bytes, fewer where text repeats itself."""


class NgramDrafts:
    """Guesses for the running sequences of an engine."""

    def __init__(self, most: int, cheap_rows: Callable[[int], int]) -> None:
        """At most `most` guesses per sequence. `cheap_rows`: rows that a step of N sequences may have."""
        self._most, self._cheap_rows = most, cheap_rows
        self._counts: WeakKeyDictionary[Request, _Counts] = WeakKeyDictionary()

    def has_room(self, running: int) -> bool:
        """Whether a step of `running` sequences has rows for guesses."""
        return running < self._cheap_rows(running)

    def draft(self, running: SequenceOf[Sequence], left: SequenceOf[int]) -> list[list[int]]:
        """Guesses of the next tokens of each sequence, which may still take `left` tokens: the most probable ones, as
        many as there is room for."""
        if not self.has_room(len(running)):
            return [[] for _ in running]
        found = [self._guess(seq, min(self._most, more - 1)) for seq, more in zip(running, left, strict=True)]
        chances = ((chance, -row) for row, guesses in enumerate(found) for _, chance in guesses)
        kept = [0] * len(running)
        # The chances of a sequence fall, so its first guesses are kept.
        for _, row in nlargest(self._cheap_rows(len(running)) - len(running), chances):
            kept[-row] += 1
        return [[token for token, _ in guesses[:count]] for guesses, count in zip(found, kept, strict=True)]

    def learn(self, seq: Sequence, count: int) -> None:
        """Count the last `count` tokens of a sequence."""
        self._counts_of(seq.request).add(_last_tokens(seq, _LONGEST + count), count)

    def _guess(self, seq: Sequence, most: int) -> list[tuple[int, float]]:
        return self._counts_of(seq.request).guess(_last_tokens(seq, _LONGEST), most)

    def _counts_of(self, request: Request) -> "_Counts":
        if request not in self._counts:
            self._counts[request] = found = _Counts()
            found.add(request.prompt, len(request.prompt))
        return self._counts[request]


def _last_tokens(seq: Sequence, count: int) -> list[int]:
    """The last `count` tokens of the prompt and the sample."""
    found = seq.tokens[-count:]
    missing = count - len(found)
    return [*seq.request.prompt[-missing:], *found] if missing else found


class _Counts:
    """How often which token followed an n-gram."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, ...], dict[int, int]] = {}
        self._room = _MOST_LEARNED

    def add(self, tokens: SequenceOf[int], count: int) -> None:
        """Count the last `count` tokens, each with those before it."""
        self._room -= count
        if self._room < 0:
            return
        for at in range(len(tokens) - count, len(tokens)):
            for size in _SIZES:
                if at >= size:
                    counts = self._next.setdefault(tuple(tokens[at - size : at]), {})
                    counts[tokens[at]] = counts.get(tokens[at], 0) + 1

    def guess(self, recent: list[int], most: int) -> list[tuple[int, float]]:
        """At most `most` tokens that follow the recent ones, each with the chance that it is right with all before."""
        found: list[tuple[int, float]] = []
        chance = 1.0
        while len(found) < most:
            keys = (tuple(recent[-size:]) for size in _SIZES)
            counts = next((self._next[key] for key in keys if key in self._next), None)
            if counts is None:
                break
            token = max(counts, key=counts.__getitem__)
            chance *= counts[token] / (sum(counts.values()) + _DOUBT)
            if chance < _LEAST_CHANCE:
                break
            found.append((token, chance))
            recent = [*recent[-_LONGEST:], token]
        return found
