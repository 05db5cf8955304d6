"""When a sequence ends, and the text it ends with.

Looking for a stop string in the text after every token would decode everything again and again. Only a token
that contains the last character of a stop string can complete one, so only those trigger a look.
"""

from collections.abc import Callable, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from dojang.types import Finish, Sampling

__all__ = ["Stopper"]


class Stopper:
    """Knows a tokenizer's end tokens and watches for stop strings."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end_tokens: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self.end_tokens = end_tokens
        # The fast tokenizer itself: what transformers puts around it takes longer than the work.
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._plain_decode: Callable[..., Any] = backend.decode if backend is not None else tokenizer.decode
        self._triggers: dict[tuple[str, ...], frozenset[int]] = {}

    def end(
        self, written: Sequence[int], fresh: Sequence[int], room: int, sampling: Sampling
    ) -> tuple[int, Finish | None]:
        """How many of the fresh tokens a sequence takes, which has room for so many more, and why it then ends."""
        fresh = fresh[:room]
        ends = self.end_tokens.union(sampling.stop_tokens).intersection(fresh)
        count = min((fresh.index(token) + 1 for token in ends), default=None)
        if sampling.stop:
            count = self._stopped(written, fresh[:count], sampling.stop) or count
        if count is not None:
            return count, "stop"
        return len(fresh), "length" if len(fresh) == room else None

    def _stopped(self, written: Sequence[int], fresh: Sequence[int], stop: tuple[str, ...]) -> int | None:
        """The number of fresh tokens after which there is a stop string."""
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
        """The decoded text, without end tokens, cut in front of the first stop string."""
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
                # A token that is part of a character ("\ufffd"), or that shows only beside others (""), may
                # complete the stop string's last character too.
                if not text or "\ufffd" in text or last & set(text)
            )
        return self._triggers[stop]
