"""Stop criteria: end tokens, stop strings and the length limit, and the text of a finished sequence.

Searching for a stop string after every token would decode the whole text again each time. Only a token that contains
the last character of a stop string can complete one, so only such tokens trigger a search.
"""

from collections.abc import Callable, Sequence
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dojang.types import Finish, Sampling

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
            count = self._stopped(written, fresh[:count], sampling.stop) or count
        if count is not None:
            return count, "stop"
        return len(fresh), "length" if len(fresh) == left else None

    def _stopped(self, written: Sequence[int], fresh: Sequence[int], stop: tuple[str, ...]) -> int | None:
        """Return the number of fresh tokens that complete a stop string."""
        # A stop string of c characters spans at most c tokens, each of at least one byte (a character
        # has up to four), and one more may straddle its front.
        reach = 4 * max(map(len, stop)) + 1
        triggers = self._trigger_tokens(stop)
        tail = [*written[-reach:], *fresh]
        for count, token in enumerate(fresh, 1):
            if token in triggers:
                end = len(tail) - len(fresh) + count
                text = self._decode(tail[max(0, end - reach) : end])
                if any(string in text for string in stop):
                    return count
        return None

    def text(self, tokens: Sequence[int], stop: tuple[str, ...]) -> str:
        """Decode the text without end tokens, cut before the first stop string."""
        text = self._decode(tokens)
        cuts = [cut for string in stop if (cut := text.find(string)) >= 0]
        return text[: min(cuts)] if cuts else text

    def _decode(self, tokens: Sequence[int]) -> str:
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


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """All end-of-sequence tokens: chat models may declare several, and the tokenizer's always counts."""
    declared = model.generation_config.eos_token_id if model.generation_config is not None else None
    ends = {tokenizer.eos_token_id, *(declared if isinstance(declared, list) else [declared])}
    return frozenset(token for token in ends if isinstance(token, int))
