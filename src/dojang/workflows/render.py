"""Messages -> prompt tokens, by the model's own chat template or, for a base model, as plain text.

A prompt that is plain text itself (messages of the role `text`) is tokenised as it is, whatever the model has.
"""

import inspect
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from dojang.errors import ConfigError
from dojang.protocols import TooLong
from dojang.types import Message, plain_prompt

__all__ = ["ChatRenderer"]

NONE: Mapping[str, Any] = MappingProxyType({})


class ChatRenderer:
    """A Renderer that refuses prompts which leave no room for the answer."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        context: int | None,
        max_tokens: int,
        variables: Mapping[str, Any] = NONE,
        key: str = "rollout.max_tokens",
    ) -> None:
        """`variables` are the chat template's own; `key` is where the user set `max_tokens`."""
        reserved = inspect.signature(tokenizer.apply_chat_template).parameters.keys() - {"tools", "documents"}
        if taken := sorted(reserved & variables.keys()):
            raise ConfigError(
                f"{', '.join(taken)} is no variable of a chat template but says how it is filled in; leave it out of "
                "model.template and tester.template"
            )
        self._tokenizer = tokenizer
        self._context = context
        self._max_tokens = max_tokens
        self._variables = variables
        self._key = key

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        tokens = self._tokens(messages)
        if self._context is not None and len(tokens) + self._max_tokens > self._context:
            raise TooLong(
                f"a prompt of {len(tokens)} tokens and {self._key}={self._max_tokens} do not fit the model's context "
                f"of {self._context} tokens; lower {self._key} or use a shorter prompt (fewer data.shots)"
            )
        return tokens

    def _tokens(self, messages: Sequence[Message]) -> tuple[int, ...]:
        try:
            plain = plain_prompt(messages)
        except ValueError as error:
            raise ConfigError(f"{error}; workflows with several turns need a conversation (data.style=chat)") from error
        if plain is not None:  # with the tokens that the tokenizer begins every text with, such as BOS
            return tuple(self._tokenizer.encode(plain))
        if self._tokenizer.chat_template is None:
            return tuple(self._tokenizer.encode(plain_text(messages)))
        try:
            text = self._apply_template(messages)
        except TemplateError:  # some templates refuse a system turn
            text = self._apply_template(fold_system(messages))
        # The template has written every special token already.
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def _apply_template(self, messages: Sequence[Message]) -> str:
        chat = [{"role": message.role, "content": message.content} for message in messages]
        text = self._tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, **self._variables)
        assert isinstance(text, str)
        return text


def fold_system(messages: Sequence[Message]) -> list[Message]:
    """The same conversation with the system's words in front of the first user turn."""
    system = [message.content for message in messages if message.role == "system"]
    first, *rest = [message for message in messages if message.role != "system"]
    return [Message(first.role, "\n\n".join([*system, first.content])), *rest]


def plain_text(messages: Sequence[Message]) -> str:
    """Turns separated by blank lines, ending where the model begins to write."""
    return "\n\n".join(message.content for message in messages) + "\n\n"
