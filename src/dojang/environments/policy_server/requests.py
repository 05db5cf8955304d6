"""Requests and replies, in a form that all APIs share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dojang.types import Completion, Message

__all__ = ["Choice", "PolicyReply", "PolicyRequest", "RequestRefused", "ShownCall"]


@dataclass(eq=False)
class RequestRefused(Exception):
    """An error reply."""

    status: int
    message: str
    code: str
    param: str | None = None


@dataclass(frozen=True, slots=True)
class PolicyRequest:
    """A request for replies to a conversation, or for continuations of tokens."""

    messages: tuple[Message, ...] = ()
    prompt: tuple[int, ...] | None = None
    """Prompt tokens, instead of messages."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """JSON schemas of tools, as in OpenAI's API."""
    n: int = 1
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    sampling: Mapping[str, float] = field(default_factory=dict)
    """Sampling parameters that the client chose: temperature, top_p, top_k, min_p, seed."""


@dataclass(frozen=True, slots=True)
class ShownCall:
    """A tool call as the client sees it."""

    id: str
    name: str
    arguments: str
    """JSON."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A sampled reply, and how it is shown to the client."""

    completion: Completion
    content: str
    calls: tuple[ShownCall, ...] = ()
    token_texts: tuple[str, ...] = ()
    stop: str | None = None
    """Stop string of the request that ended it."""

    @property
    def message(self) -> Message:
        """The message as the client sends it back."""
        return Message("assistant", self.content, tool_calls=tuple((each.name, each.arguments) for each in self.calls))


@dataclass(frozen=True, slots=True)
class PolicyReply:
    """Replies to a request of one prompt, or of several."""

    id: str
    prompts: tuple[tuple[int, ...], ...]
    choices: tuple[Choice, ...]
    """As many for each prompt, in the order of the prompts."""

    def prompt_of(self, at: int) -> tuple[int, ...]:
        """Returns the prompt of a choice."""
        return self.prompts[at * len(self.prompts) // len(self.choices)]

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def completion_tokens(self) -> int:
        return sum(len(each.completion.tokens) for each in self.choices)

    @property
    def version(self) -> int:
        """Version of the weights that sampled the first token."""
        return self.choices[0].completion.version
