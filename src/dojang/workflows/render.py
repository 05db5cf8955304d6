"""Messages -> prompt tokens, by the model's own chat template or, for a base model, as plain text."""

from collections.abc import Sequence

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from dojang.errors import ConfigError
from dojang.types import Message

__all__ = ["ChatRenderer"]


class ChatRenderer:
    """A Renderer that refuses prompts which leave no room for the answer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, context: int | None, max_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._context = context
        self._max_tokens = max_tokens

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        tokens = self._tokens(messages)
        if self._context is not None and len(tokens) + self._max_tokens > self._context:
            raise ConfigError(
                f"a prompt of {len(tokens)} tokens and rollout.max_tokens={self._max_tokens} do not fit the "
                f"model's context of {self._context} tokens; lower rollout.max_tokens or use a shorter prompt "
                "(fewer data.shots)"
            )
        return tokens

    def _tokens(self, messages: Sequence[Message]) -> tuple[int, ...]:
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
        text = self._tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
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
