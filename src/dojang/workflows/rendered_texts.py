"""Cache of rendered conversations: the text of a conversation is the beginning of its text after the next turn."""

from collections.abc import Sequence

from dojang.types import Message

__all__ = ["RenderedTexts"]

_CHARACTERS = 2**24
"""Most characters that are kept: those of 1,000 conversations of 4,000 tokens."""


class RenderedTexts:
    """Texts by their messages; those not used for longest are dropped."""

    def __init__(self, max_characters: int = _CHARACTERS) -> None:
        self._max_characters = max_characters
        self._characters = 0
        self._texts: dict[tuple[Message, ...], str] = {}

    def get(self, messages: Sequence[Message]) -> str | None:
        """Returns the text of a conversation, if it is known."""
        key = tuple(messages)
        text = self._texts.pop(key, None)
        if text is not None:
            self._texts[key] = text  # now the newest
        return text

    def put(self, messages: Sequence[Message], text: str) -> None:
        """Keeps the text of a conversation that `get` did not find."""
        self._texts[tuple(messages)] = text
        self._characters += len(text)
        while self._characters > self._max_characters:
            self._characters -= len(self._texts.pop(next(iter(self._texts))))
