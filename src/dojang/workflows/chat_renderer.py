"""Renders messages to prompt tokens, with the model's chat template or, for a base model, as plain text.

A plain-text prompt (messages of the role `text`) is tokenised without the chat template, even if the model has one.
"""

import copy
import inspect
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from dojang.core.errors import ConfigError, TooLong
from dojang.tool_calls.calls import CallFormat, ParsedReply, ToolSchemas
from dojang.tool_calls.formats import PROBE_TOOLS, UnknownCallFormat, recognize, schemas_by_name
from dojang.types import Message, plain_prompt
from dojang.workflows.rendered_texts import RenderedTexts
from dojang.workflows.token_bytes import special_tokens

__all__ = ["LEAVE_OUT", "ChatRenderer"]

LEAVE_OUT = "use a shorter prompt (fewer data.shots), or leave such prompts out with data.filter_overlong_prompts=true"
"""Remedy for overlong prompts of a dataset."""
NONE: Mapping[str, Any] = MappingProxyType({})
_BATCH = 1024
"""Number of prompts per tokenizer call."""
_ROOM, _EXPANSION = 256, 11
"""Tokens reserved for text that a template or tokenizer adds to some prompts only; and the largest factor by which
Unicode normalisation lengthens a non-ASCII text, in bytes."""
_UTF8 = ("utf-8", "surrogatepass")
_MARK = "Answer."
"""Message whose end is found again in the text of a chat template."""
_OPENED = re.compile(r"<think>\s*\Z")
_OTHER_MODELS = (
    "set workflow.call_format=code_block for python_tool, choose a model whose calls can be parsed (Qwen2.5, Qwen3, "
    "Qwen3.5, Llama 3.1, GLM-4.5, Nemotron 3), or describe the tools in the prompt and parse replies in a custom "
    "environment"
)


class ChatRenderer:
    """A Renderer that raises TooLong if a prompt and `max_tokens` exceed the context length."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        context: int | None,
        max_tokens: int,
        variables: Mapping[str, Any] = NONE,
        key: str = "rollout.max_tokens",
        limit: str = "the model's context",
        remedy: str = LEAVE_OUT,
    ) -> None:
        """`variables` are passed to the chat template. For error messages, `key` is the setting of `max_tokens`,
        `limit` describes the source of `context`, and `remedy` says what to do about overlong prompts."""
        reserved = inspect.signature(tokenizer.apply_chat_template).parameters.keys() - {"tools", "documents"}
        if taken := sorted(reserved & variables.keys()):
            raise ConfigError(
                f"{', '.join(taken)} is no variable of a chat template but says how it is filled in; leave it out of "
                "model.chat_template_kwargs and tester.chat_template_kwargs"
            )
        self._tokenizer = tokenizer
        self._context = context
        self._max_tokens = max_tokens
        self._variables = variables
        self._key = key
        self._limit = limit
        self._remedy = remedy
        self._texts = RenderedTexts()
        self._schemas: ToolSchemas = {}
        self._call_formats: list[CallFormat] = []  # shared by copies: the format is the template's, not the tools'

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        tokens = self.prompt_tokens(messages)
        if self._context is not None and len(tokens) + self._max_tokens > self._context:
            raise TooLong(
                f"a prompt of {len(tokens)} tokens and {self._key}={self._max_tokens} do not fit {self._limit} "
                f"of {self._context} tokens",
                f"lower {self._key} or {self._remedy}",
            )
        return tokens

    def prompt_tokens(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Returns the tokens of a prompt, whatever their number."""
        text, special = self._text(messages)
        return tuple(self._tokenizer.encode(text, add_special_tokens=special))

    def render_completion(
        self, messages: Sequence[Message], completion: str
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the tokens of the prompt, and of a given completion up to and including EOS. The prompt tokens equal
        those of `render`, so the completion starts at the position where the model would generate. Raises ConfigError
        if the chat template changes the prompt or drops the completion, TooLong if both exceed the context length."""
        text, special = self._text(messages)
        rest = completion
        if not special:
            whole = self._with_template([*messages, Message("assistant", completion)], generation=False)
            rest = whole.removeprefix(text)
            if len(rest) == len(whole):
                raise ConfigError(
                    f"the chat template writes another prompt where an answer follows: {whole[:80]!r} does not begin "
                    f"with {text[-80:]!r}; set model.chat_template_kwargs so that both are the same (enable_thinking: "
                    f"false)"
                )
        prompt = tuple(self._tokenizer.encode(text, add_special_tokens=special))
        tokens = self._ended(self._tokenizer.encode(rest, add_special_tokens=False))
        told = str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))
        if _letters(completion) not in _letters(told):
            raise ConfigError(f"the tokens of a completion say {told[:80]!r}, and the completion {completion[:80]!r}")
        if self._context is not None and len(prompt) + len(tokens) > self._context:
            raise TooLong(
                f"a prompt of {len(prompt)} tokens and its completion of {len(tokens)} do not fit {self._limit} of "
                f"{self._context} tokens; leave such rows out with data.filter_overlong_prompts=true"
            )
        return prompt, tokens

    def _ended(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Truncates after the EOS token, or appends it: text that a template adds after EOS is never sampled."""
        end = self._tokenizer.eos_token_id
        if end is None:
            return tuple(tokens)
        kept = list(tokens)
        if end in kept:
            del kept[len(kept) - kept[::-1].index(end) :]
        else:
            kept.append(end)
        return tuple(kept)

    def end_of_turn(self, messages: Sequence[Message]) -> int:
        """Returns the token that ends the answer to a prompt: the first special token that the chat template writes
        after an assistant's message, or EOS for plain text. Raises ConfigError if the tokenizer has neither."""
        chat = plain_prompt(messages) is None and self._tokenizer.chat_template is not None
        found = self._end_of_chat_turn if chat else self._tokenizer.eos_token_id
        if not isinstance(found, int):
            raise ConfigError(
                f"the tokenizer of {self._tokenizer.name_or_path} has no token that ends an answer; set eos_token in "
                "its tokenizer_config.json"
            )
        return found

    @cached_property
    def _end_of_chat_turn(self) -> object:
        """First special token that the chat template writes after an assistant's message, else EOS."""
        turn = [Message("user", _MARK), Message("assistant", _MARK)]
        after = self._with_template(turn, generation=False).rpartition(_MARK)[2]
        special = special_tokens(self._tokenizer)
        tokens = self._tokenizer.encode(after, add_special_tokens=False)
        return next((token for token in tokens if token in special), self._tokenizer.eos_token_id)

    def continue_chat(
        self, messages: Sequence[Message], reply: Sequence[int], said: str, more: Sequence[Message]
    ) -> tuple[int, ...] | None:
        """Returns the tokens between a sampled reply, with the text `said`, and the next one. The reply itself is never
        tokenised again: only the text after it is. None if the chat template rewrites what came before, for example if
        it drops the thinking of earlier turns; differences in white space alone are ignored."""
        if self._tokenizer.chat_template is None:
            return tuple(self._tokenizer.encode("\n\n" + plain_text(more), add_special_tokens=False))
        end = self.end_of_turn(messages)
        whole = self._prompt_text([*messages, Message("assistant", said), *more])
        rest = _after(whole, self._prompt_text(messages) + said.removeprefix(self._opened_thinking))
        if rest is None:
            return None
        tokens = self._tokenizer.encode(rest, add_special_tokens=False)
        if end in tokens:  # white space before it is the template's: the sampled turn ended where it ended
            del tokens[: tokens.index(end) + (len(reply) > 0 and reply[-1] == end)]
        elif tokens and reply and reply[-1] == tokens[0] and tokens[0] in self._next_turn_tokens:
            del tokens[0]
        return tuple(tokens)

    def text_of(self, messages: Sequence[Message], reply: Sequence[int]) -> str:
        """Returns the text of a sampled reply, without the token that ends a turn, and with the tag of the thinking if
        the prompt has opened it: chat templates expect both tags."""
        tokens = list(reply)
        chat = plain_prompt(messages) is None and self._tokenizer.chat_template is not None
        ends = {self.end_of_turn(messages), self._tokenizer.eos_token_id}
        if tokens and tokens[-1] in (ends | self._next_turn_tokens if chat else ends):
            tokens.pop()
        return (self._opened_thinking if chat else "") + str(self._tokenizer.decode(tokens))

    def parse_reply(self, messages: Sequence[Message], reply: Sequence[int]) -> ParsedReply | None:
        """Returns a sampled reply with its tool calls, in the format of the chat template; None without tools."""
        if not self._variables.get("tools"):
            return None
        parsed = self._call_formats[0].parse(self.text_of(messages, reply), self._schemas)
        return ParsedReply(parsed.content.removeprefix(self._opened_thinking), parsed.calls)

    @cached_property
    def _opened_thinking(self) -> str:
        """Tag that the generation prompt opens the thinking with, with the white space after it; else empty."""
        opened = _OPENED.search(self._with_template([Message("user", _MARK)], generation=True))
        return opened[0] if opened else ""

    @cached_property
    def _next_turn_tokens(self) -> frozenset[int]:
        """Tokens that begin the next message and end the assistant's turn, where the template writes no end (GLM)."""
        special = special_tokens(self._tokenizer)
        turn, found = [Message("user", _MARK), Message("assistant", _MARK)], set[int]()
        after = self._with_template(turn, generation=False).rpartition(_MARK)[2]
        if special.intersection(self._tokenizer.encode(after, add_special_tokens=False)):
            return frozenset()
        for role in ("user", "tool"):
            try:
                whole = self._with_template([*turn, Message(role, _MARK)], generation=False)
            except ConfigError:  # a template without results of tools
                continue
            tokens = self._tokenizer.encode("".join(whole.split(_MARK)[2:3]), add_special_tokens=False)
            found.update([token for token in tokens if token in special][:1])
        return frozenset(found)

    def token_texts(self, tokens: Sequence[int]) -> list[str]:
        """Returns the text of each token; joined, they may differ from the text where a character has several."""
        return [str(self._tokenizer.decode([token])) for token in tokens]

    def fits(self, length: int) -> bool:
        """Returns whether a completion of `max_tokens` fits the context after `length` tokens."""
        return self._context is None or length + self._max_tokens <= self._context

    def room(self, length: int) -> int | None:
        """Returns the number of tokens that the context has left after `length` tokens; None without a limit."""
        return None if self._context is None else self._context - length

    def with_tools(self, schemas: Sequence[Mapping[str, object]]) -> "ChatRenderer":
        """Returns a copy that passes JSON schemas of tools to the chat template. Raises ConfigError if the template
        does not mention tools, so that the model would not be told of them, or if its calls cannot be parsed."""
        made = self._told(schemas)
        question = [Message("user", _MARK)]
        if made._text(question) == self._text(question):
            raise ConfigError(
                f"the chat template of {self._tokenizer.name_or_path} does not write tools; choose a model whose "
                "template has them (Qwen2.5, Qwen3, Llama 3.1), or describe the tools in the prompt and parse replies "
                "in a custom environment"
            )
        if not self._call_formats:
            self._call_formats.append(self._told(PROBE_TOOLS)._recognized())
        made._schemas = schemas_by_name(made._variables["tools"])
        return made

    def _told(self, schemas: Sequence[Mapping[str, object]]) -> "ChatRenderer":
        made = copy.copy(self)
        made._variables = {**self._variables, "tools": [dict(each) for each in schemas]}
        made._texts = RenderedTexts()
        return made

    def _recognized(self) -> CallFormat:
        """Returns the format of the chat template's calls. Raises ConfigError if none parses them."""

        def reply_text(prompt: str, whole: str) -> str:
            rest = _after(whole, prompt)
            if rest is None:
                raise ConfigError("it writes another prompt where a call follows")
            end = self._end_of_chat_turn
            if isinstance(end, int):
                rest = rest.partition(str(self._tokenizer.decode([end])))[0]
            return self._opened_thinking + rest

        try:
            return recognize(lambda messages, prompt: self._with_template(messages, generation=prompt), reply_text)
        except UnknownCallFormat as error:
            raise ConfigError(
                f"the tool calls of the chat template of {self._tokenizer.name_or_path} cannot be parsed: {error}; "
                f"{_OTHER_MODELS}"
            ) from error

    def overlong(self, prompts: Sequence[Sequence[Message]]) -> list[int]:
        """Returns the indices of the prompts for which `render` raises TooLong. A prompt whose bytes, with a margin for
        the chat template, are fewer than the allowed tokens is not tokenised, since a token has at least one byte."""
        if self._context is None:
            return []
        room, found = self._context - self._max_tokens, list[int]()
        written: dict[tuple[str, ...], int] = {}  # bytes that the chat template adds, by the roles of a conversation
        doubtful = []
        for place, messages in enumerate(prompts):
            content = "".join(message.content for message in messages)
            roles = tuple(message.role for message in messages)
            if roles not in written:
                written[roles] = max(0, len(self._text(messages)[0].encode(*_UTF8)) - len(content.encode(*_UTF8)))
            if _most_tokens(content) + 2 * written[roles] > room:
                doubtful.append(place)
        for start in range(0, len(doubtful), _BATCH):
            found += self._longer(
                room, {place: self._text(prompts[place]) for place in doubtful[start : start + _BATCH]}
            )
        return found

    def _longer(self, room: int, texts: Mapping[int, tuple[str, bool]]) -> list[int]:
        """Returns the indices of the texts with more than `room` tokens."""
        found: list[int] = []
        for special in (True, False):
            some = {place: text for place, (text, adds) in texts.items() if adds is special}
            if some:
                encoded = self._tokenizer(list(some.values()), add_special_tokens=special, verbose=False)["input_ids"]
                found += [place for place, tokens in zip(some, encoded, strict=True) if len(tokens) > room]
        return sorted(found)

    def _text(self, messages: Sequence[Message]) -> tuple[str, bool]:
        """Returns the prompt as text, and whether the tokenizer must add special tokens, such as BOS: the output of a
        chat template already contains them."""
        try:
            plain = plain_prompt(messages)
        except ValueError as error:
            raise ConfigError(f"{error}; workflows with several turns need a conversation (data.style=chat)") from error
        if plain is not None:
            return plain, True
        if self._tokenizer.chat_template is None:
            return plain_text(messages), True
        return self._prompt_text(messages), False

    def _prompt_text(self, messages: Sequence[Message]) -> str:
        """Applies the chat template up to the generation prompt, once per conversation: each turn needs the text of
        the turn before, and the samples of a group begin with the same prompt."""
        text = self._texts.get(messages)
        if text is None:
            text = self._with_template(messages, generation=True)
            self._texts.put(messages, text)
        return text

    def _with_template(self, messages: Sequence[Message], *, generation: bool) -> str:
        try:
            return self._apply_template(messages, generation=generation)
        except TemplateError as error:
            try:  # some templates reject the role `system`
                return self._apply_template(fold_system(messages), generation=generation)
            except TemplateError:
                roles = ", ".join(message.role for message in messages)
                raise ConfigError(
                    f"the chat template of {self._tokenizer.name_or_path} cannot render a conversation of {roles}: "
                    f"{error}; correct the template in its directory, or choose another model"
                ) from error

    def _apply_template(self, messages: Sequence[Message], *, generation: bool) -> str:
        chat = [_as_dict(message) for message in messages]
        text = self._tokenizer.apply_chat_template(
            chat, tokenize=False, add_generation_prompt=generation, **self._variables
        )
        assert isinstance(text, str)
        return text


def _as_dict(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name:
        found["name"] = message.name
    if message.tool_calls:
        found["tool_calls"] = [
            {"type": "function", "function": {"name": name, "arguments": json.loads(arguments)}}
            for name, arguments in message.tool_calls
        ]
    return found


def _after(whole: str, start: str) -> str | None:
    """Returns the rest of `whole` after `start`, where the two may differ in white space; None if `whole` begins
    otherwise."""
    if whole.startswith(start):
        return whole[len(start) :]
    place = 0
    for letter in "".join(start.split()):
        while place < len(whole) and whole[place].isspace():
            place += 1
        if place == len(whole) or whole[place] != letter:
            return None
        place += 1
    return whole[place:]


def fold_system(messages: Sequence[Message]) -> list[Message]:
    """Returns the conversation with the system prompt prepended to the first other message."""
    system = [message.content for message in messages if message.role == "system"]
    first, *rest = [message for message in messages if message.role != "system"]
    return [Message(first.role, "\n\n".join([*system, first.content])), *rest]


def plain_text(messages: Sequence[Message]) -> str:
    """Joins the messages with blank lines; the completion starts at the end."""
    return "\n\n".join(message.content for message in messages) + "\n\n"


def _letters(text: str) -> str:
    """Removes white space and applies NFKC, as some tokenizers do, for comparison."""
    return "".join(unicodedata.normalize("NFKC", text).split())


def _most_tokens(text: str) -> int:
    """Upper bound of the number of tokens of a text."""
    return _ROOM + len(text.encode(*_UTF8)) * (1 if text.isascii() else _EXPANSION)
