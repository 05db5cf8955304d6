"""Messages -> prompt tokens, by the model's own chat template or, for a base model, as plain text."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from dojang.errors import ConfigError
from dojang.types import Message

__all__ = ["ChatRenderer"]


class ChatRenderer:
    """A Renderer that refuses prompts which leave no room for the answer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, context: int, max_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._context = context
        self._max_tokens = max_tokens

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        tokens = self._tokens(messages)
        if len(tokens) + self._max_tokens > self._context:
            raise ConfigError(
                f"a prompt of {len(tokens)} tokens and rollout.max_tokens={self._max_tokens} do not fit the "
                f"model's context of {self._context} tokens; lower rollout.max_tokens or use a shorter prompt "
                "(fewer data.shots)"
            )
        return tokens

    def _tokens(self, messages: Sequence[Message]) -> tuple[int, ...]:
        if self._tokenizer.chat_template is None:
            return tuple(self._tokenizer.encode(plain_text(messages)))
        chat = [{"role": message.role, "content": message.content} for message in messages]
        text = self._tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        assert isinstance(text, str)
        # The template has written every special token already.
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))


def plain_text(messages: Sequence[Message]) -> str:
    """Turns separated by blank lines, ending where the model begins to write."""
    return "\n\n".join(message.content for message in messages) + "\n\n"
