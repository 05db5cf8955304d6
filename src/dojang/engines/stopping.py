"""When a sequence ends, and the text it ends with.

Looking for a stop string in the text after every token would decode everything again and again. Only a token
that contains the last character of a stop string can complete one, so only those trigger a look.
"""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from dojang.types import Finish

__all__ = ["Stopper"]


class Stopper:
    """Knows a tokenizer's end tokens and watches for stop strings."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end_tokens: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._end_tokens = end_tokens
        self._triggers: dict[tuple[str, ...], frozenset[int]] = {}

    def finish(self, tokens: Sequence[int], limit: int, stop: tuple[str, ...]) -> Finish | None:
        """Why the sequence ends after its newest token, or None if it goes on."""
        newest = tokens[-1]
        if newest in self._end_tokens:
            return "stop"
        if stop and newest in self._trigger_tokens(stop):
            # A stop string of c characters spans at most c tokens, each of at least one byte (a character
            # has up to four), and one more may straddle its front.
            reach = 4 * max(map(len, stop)) + 1
            tail = self._decode(tokens[-reach:])
            if any(string in tail for string in stop):
                return "stop"
        return "length" if len(tokens) >= limit else None

    def text(self, tokens: Sequence[int], stop: tuple[str, ...]) -> str:
        """The decoded text, without end tokens, cut in front of the first stop string."""
        text = self._decode(tokens)
        cuts = [cut for string in stop if (cut := text.find(string)) >= 0]
        return text[: min(cuts)] if cuts else text

    def _decode(self, tokens: Sequence[int]) -> str:
        text = self._tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
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
