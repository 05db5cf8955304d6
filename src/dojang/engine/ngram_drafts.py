"""Speculative decoding by n-grams: draft tokens of samples, from their prompt and from all samples of it.

A decode step that verifies draft tokens computes one more row for each, and samples after every accepted one: several
tokens from one pass over the weights. Nothing is lost by it. Every token has its own random number (rng.py), so the
token sampled from the model's logits is the same with a draft as without, and a draft token is accepted if it equals
it.

What follows an n-gram is counted over the end of the prompt and all samples of a request so far, also finished ones.
The longest n-gram that was seen before decides; its commonest next token is the draft while that is probable enough.
Tokens are counted when drafts are wanted first: most requests end before there is room for any.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from heapq import nlargest
from weakref import WeakKeyDictionary

from dojang.engine.sequence import Request, Sequence

__all__ = ["NgramDrafts", "make_drafts"]

_SIZES = (3, 2, 1)
"""Tokens of an n-gram, the longest first."""
_LONGEST = _SIZES[0]
_DOUBT = 0.5
"""Added to the number of times that an n-gram was seen, so that once is no certainty."""
_LEAST_CHANCE = 0.1
"""Draft tokens less probable than this are left out."""
_MOST_COUNTED = 2**19
"""Tokens counted at a time, of all requests; each takes up to 800 bytes, fewer where text repeats itself."""
_MOST_OF_PROMPT = 2048
"""Tokens counted at the end of a prompt: counting takes 6 us a token, and each turn of a conversation is a prompt."""


class NgramDrafts:
    """Draft tokens for the running sequences of an engine."""

    def __init__(self, most: int, cheap_rows: Callable[[int], int]) -> None:
        """At most `most` draft tokens per sequence. `cheap_rows`: rows that a step of N sequences may have."""
        self._most, self._cheap_rows = most, cheap_rows
        self._counts: WeakKeyDictionary[Request, _Counts] = WeakKeyDictionary()

    def has_room(self, running: int) -> bool:
        """Whether a step of `running` sequences has rows for draft tokens."""
        return running < self._cheap_rows(running)

    def draft(self, running: SequenceOf[Sequence], left: SequenceOf[int]) -> list[list[int]]:
        """Draft tokens of each sequence, which may still take `left` tokens: the most probable ones, as
        many as there is room for."""
        if not self.has_room(len(running)):
            return [[] for _ in running]
        self._count({seq.request for seq in running})
        found = [self._draft(seq, min(self._most, more - 1)) for seq, more in zip(running, left, strict=True)]
        chances = ((chance, -row) for row, drafts in enumerate(found) for _, chance in drafts)
        kept = [0] * len(running)
        # The chances of a sequence fall, so its first draft tokens are kept.
        for _, row in nlargest(self._cheap_rows(len(running)) - len(running), chances):
            kept[-row] += 1
        return [[token for token, _ in drafts[:count]] for drafts, count in zip(found, kept, strict=True)]

    def learn(self, seq: Sequence) -> None:
        """Have the tokens of a sequence counted, also those that it will get, once drafts are wanted."""
        self._counts.setdefault(seq.request, _Counts()).learn(seq)

    def forget(self, request: Request) -> None:
        """Drop the counts of a request that was delivered."""
        self._counts.pop(request, None)

    def _count(self, requests: Iterable[Request]) -> None:
        """Count the tokens that were sampled meanwhile."""
        room = _MOST_COUNTED - sum(each.total for each in self._counts.values())
        for request in requests:
            room -= self._counts[request].count(request, room)

    def _draft(self, seq: Sequence, most: int) -> list[tuple[int, float]]:
        return self._counts[seq.request].draft(_last_tokens(seq.request.prompt, seq.tokens, _LONGEST), most)


def make_drafts(most: int, cheap_rows: Callable[[int], int]) -> NgramDrafts | None:
    """Returns what drafts tokens for an engine; None if nothing does. Warns if no step has rows for them."""
    if most and cheap_rows(1) == 1:
        reason = "a step with draft tokens takes much longer on this processor in this precision"
        warnings.warn(f"rollout.engine.speculative_tokens={most} has no effect: {reason}", RuntimeWarning, stacklevel=2)
        return None
    return NgramDrafts(most, cheap_rows) if most else None


def _last_tokens(prompt: SequenceOf[int], tokens: SequenceOf[int], count: int) -> list[int]:
    """The last `count` tokens of a prompt and a sample."""
    found = list(tokens[-count:])
    missing = count - len(found)
    return [*prompt[-missing:], *found] if missing else found


class _Counts:
    """How often which token followed an n-gram, in the prompt and the samples of a request."""

    def __init__(self) -> None:
        self.total = 0
        """Tokens counted."""
        self._next: dict[tuple[int, ...], dict[int, int]] = {}
        self._samples: dict[int, list[int]] = {}
        """Tokens of each sample, which grow. Not the sample: it would keep its request, and so these counts."""
        self._counted = Counter[int]()
        """Tokens counted of each sample."""

    def learn(self, seq: Sequence) -> None:
        self._samples[seq.index] = seq.tokens

    def count(self, request: Request, room: int) -> int:
        """Count at most `room` tokens that are not counted yet; returns their number."""
        before = self.total
        if not before:
            prompt = request.prompt[-min(room, _MOST_OF_PROMPT) :] if room > 0 else ()
            self._add(prompt, len(prompt))
        for index, tokens in self._samples.items():
            done = self._counted[index]
            new = min(len(tokens) - done, room - (self.total - before))
            if new > 0:
                self._counted[index] = done + new
                context = _last_tokens(request.prompt, tokens[max(0, done - _LONGEST) : done], _LONGEST)
                self._add([*context, *tokens[done : done + new]], new)
        return self.total - before

    def _add(self, tokens: SequenceOf[int], count: int) -> None:
        """Count the last `count` tokens, each with those before it."""
        self.total += count
        for at in range(len(tokens) - count, len(tokens)):
            for size in _SIZES:
                if at >= size:
                    counts = self._next.setdefault(tuple(tokens[at - size : at]), {})
                    counts[tokens[at]] = counts.get(tokens[at], 0) + 1

    def draft(self, recent: list[int], most: int) -> list[tuple[int, float]]:
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
