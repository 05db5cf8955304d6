"""Stop criteria: end tokens, stop strings, a task's stop line and the length limit; the text of a finished sequence.

Searching for a stop string after every token would decode the whole text again each time. Only a token that contains
the last character of a stop string can complete one, so only such tokens trigger a search. The same holds for a stop
line, whose task reads the whole text: it is decoded only when the last line contains one of its strings.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from itertools import chain
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dojang.types import Finish, Sampling, StopLine

__all__ = ["StopCriteria", "end_tokens"]


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
                last = self._last_line(written, new, line)
                may_end = bool(last) and _line_pattern(line).search(self.decode(last)) is not None
                if may_end and line.end(self.decode([*written, *new])) is not None:
                    return count
        return None

    def _last_line(self, written: Sequence[int], fresh: Sequence[int], line: StopLine) -> list[int]:
        """Return the tokens of the last line, or of its end as far as a string of the stop line reaches; none if they
        cannot contain such a string."""
        if not line.whole_line:
            reach = max(len(each.encode()) for each in line.begins) + 1  # a token may straddle the front
            return [*written[-reach:], *fresh][-reach:]
        marks, breaks, marked, found = self._trigger_tokens(line.begins), self._line_breaks, False, list[int]()
        for at, token in enumerate(chain(reversed(fresh), reversed(written))):
            marked = marked or token in marks
            found.append(token)
            if at and token in breaks:
                break
        return found[::-1] if marked else []

    def text(self, tokens: Sequence[int], sampling: Sampling) -> str:
        """Decode the text without end tokens, cut before the first stop string or at the end of the stop line."""
        text = self.decode(tokens)
        cuts = [cut for string in sampling.stop if (cut := text.find(string)) >= 0]
        text = text[: min(cuts)] if cuts else text
        line = sampling.stop_line
        end = None if line is None else line.end(text)
        # Only a sequence that ended there is cut: all that it samples is graded.
        return text if line is None or end is None or line.end(self.decode(tokens[:-1])) is not None else text[:end]

    def decode(self, tokens: Sequence[int]) -> str:
        """Decode tokens without end tokens."""
        text = self._plain_decode(list(tokens), skip_special_tokens=True)
        assert isinstance(text, str)
        return text

    def _trigger_tokens(self, stop: tuple[str, ...]) -> frozenset[int]:
        if stop not in self._triggers:
            last = {string[-1] for string in stop}
            self._triggers[stop] = frozenset(
                token
                for token, text in enumerate(self._token_texts)
                # A token that is part of a character ("\ufffd"), or visible only beside others (""), may also complete
                # the stop string's last character.
                if not text or "\ufffd" in text or last & set(text)
            )
        return self._triggers[stop]

    @cached_property
    def _line_breaks(self) -> frozenset[int]:
        """Tokens with a line break."""
        return frozenset(token for token, text in enumerate(self._token_texts) if "\n" in text)

    @cached_property
    def _token_texts(self) -> list[str]:
        tokens = [[token] for token in range(len(self._tokenizer))]
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            return list(self._tokenizer.batch_decode(tokens))
        return list(backend.decode_batch(tokens, skip_special_tokens=False))


@cache
def _line_pattern(line: StopLine) -> re.Pattern[str]:
    begin = "|".join(map(re.escape, line.begins))
    return re.compile(rf"(?:{begin})[^\n]*\n" if line.whole_line else begin)


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """All end-of-sequence tokens: chat models may declare several, and the tokenizer's always counts."""
    declared = model.generation_config.eos_token_id if model.generation_config is not None else None
    ends = {tokenizer.eos_token_id, *(declared if isinstance(declared, list) else [declared])}
    return frozenset(token for token in ends if isinstance(token, int))
