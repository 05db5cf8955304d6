"""Stop criteria: end tokens, stop strings, a task's stop line and the length limit; the text of a finished sequence.

Searching for a stop string after every token would decode the whole text again each time. Only a token that contains
the last character of a stop string can complete one, so only such tokens trigger a search. The same holds for a stop
line, whose task reads the whole text: it is decoded only when the last lines contain one of its strings.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dojang.types import Finish, Sampling, StopLine

__all__ = ["StopCriteria", "end_tokens"]

_WINDOW = 64
"""Tokens in which a stop line is looked for first."""


class StopCriteria:
    """End tokens of a tokenizer, and stop strings of a request."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end_tokens: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self.end_tokens = end_tokens
        # The Rust tokenizer itself: the wrapper of transformers takes longer than the decoding.
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._plain_decode: Callable[..., Any] = backend.decode if backend is not None else tokenizer.decode
        self._triggers: dict[tuple[str, ...], frozenset[int]] = {}

    def check(
        self, written: Sequence[int], fresh: Sequence[int], left: int, sampling: Sampling
    ) -> tuple[int, Finish | None]:
        """Return how many fresh tokens a sequence takes, and its finish reason if it stops there. `left` is how many it
        may take before its length limit."""
        fresh = fresh[:left]
        ends = self.end_tokens.union(sampling.stop_tokens).intersection(fresh)
        count = min((fresh.index(token) + 1 for token in ends), default=None)
        if sampling.stop:
            count = self.find_stop(written, fresh[:count], sampling.stop) or count
        if sampling.stop_line is not None:
            count = self._find_stop_line(written, fresh[:count], sampling.stop_line) or count
        if count is not None:
            return count, "stop"
        return len(fresh), "length" if len(fresh) == left else None

    def find_stop(self, written: Sequence[int], fresh: Sequence[int], stop: tuple[str, ...]) -> int | None:
        """Return the number of fresh tokens that complete a stop string."""
        # A stop string of c characters spans at most c tokens, each of at least one byte (a character
        # has up to four), and one more may straddle its front.
        reach = 4 * max(map(len, stop)) + 1
        triggers = self._trigger_tokens(stop)
        tail = [*written[-reach:], *fresh]
        for count, token in enumerate(fresh, 1):
            if token in triggers:
                end = len(tail) - len(fresh) + count
                text = self.decode(tail[max(0, end - reach) : end])
                if any(string in text for string in stop):
                    return count
        return None

    def _find_stop_line(self, written: Sequence[int], fresh: Sequence[int], line: StopLine) -> int | None:
        """Return the number of fresh tokens that complete the stop line."""
        triggers = self._trigger_tokens(("\n",) if line.whole_line else line.begins)
        for count, token in enumerate(fresh, 1):
            if token in triggers:
                new = fresh[:count]
                if self._may_end(written, new, line) and line.end(self.decode([*written, *new])) is not None:
                    return count
        return None

    def _may_end(self, written: Sequence[int], fresh: Sequence[int], line: StopLine) -> bool:
        """Whether one of the stop line's strings is in the last lines."""
        pattern = _line_pattern(line)
        size = max(_WINDOW, 4 * max(map(len, line.begins)) + 1)
        while True:
            text = self.decode([*written[-size:], *fresh][-size:])
            if pattern.search(text):
                return True
            begun = not line.whole_line or "\n" in text.rpartition("\n")[0].rstrip()  # the line begins in the window
            if begun or size >= len(written) + len(fresh):
                return False
            size *= 4

    def text(self, tokens: Sequence[int], sampling: Sampling) -> str:
        """Decode the text without end tokens, cut before the first stop string or at the end of the stop line."""
        text = self.decode(tokens)
        cuts = [cut for string in sampling.stop if (cut := text.find(string)) >= 0]
        text = text[: min(cuts)] if cuts else text
        return text if sampling.stop_line is None else text[: sampling.stop_line.end(text)]

    def decode(self, tokens: Sequence[int]) -> str:
        """Decode tokens without end tokens."""
        text = self._plain_decode(list(tokens), skip_special_tokens=True)
        assert isinstance(text, str)
        return text

    def _trigger_tokens(self, stop: tuple[str, ...]) -> frozenset[int]:
        if stop not in self._triggers:
            last = {string[-1] for string in stop}
            texts = self._tokenizer.batch_decode([[token] for token in range(len(self._tokenizer))])
            self._triggers[stop] = frozenset(
                token
                for token, text in enumerate(texts)
                # A token that is part of a character ("\ufffd"), or visible only beside others (""), may also complete
                # the stop string's last character.
                if not text or "\ufffd" in text or last & set(text)
            )
        return self._triggers[stop]


@cache
def _line_pattern(line: StopLine) -> re.Pattern[str]:
    begin = "|".join(map(re.escape, line.begins))
    return re.compile(rf"(?:{begin})[^\n]*\n" if line.whole_line else begin)


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """All end-of-sequence tokens: chat models may declare several, and the tokenizer's always counts."""
    declared = model.generation_config.eos_token_id if model.generation_config is not None else None
    ends = {tokenizer.eos_token_id, *(declared if isinstance(declared, list) else [declared])}
    return frozenset(token for token in ends if isinstance(token, int))
