"""History of a session: finds the conversation that a request continues.

A client sends the whole conversation with every request, often in another form than it was sampled: tool calls as JSON
instead of the text that the model wrote. A request that begins with a conversation that was shown to the client
continues its tokens, which are never tokenized again.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dojang.environments.token_stream import TokenStream
from dojang.protocols import Renderer
from dojang.types import Message

__all__ = ["History", "Place", "Prompt", "shown_with"]


@dataclass(eq=False, slots=True)
class Place:
    """A conversation up to and including a sampled reply."""

    shown: tuple[Any, ...]
    """The messages as the client has them, in a form that can be compared."""
    before: tuple[Message, ...]
    """The messages before the reply, as they were rendered."""
    reply: tuple[int, ...]
    tools: str
    """JSON schemas of the tools that the model was told of."""
    sampling: object
    """Sampling parameters of the reply."""
    stream: TokenStream
    end: int
    """Number of tokens of the stream up to and including the reply."""
    continued: bool = False
    """Whether a later reply continues the stream; a further one starts a new stream with the same tokens."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """All tokens up to and including the reply. A stream only grows, so they stay what they were."""
        return tuple(self.stream.tokens[: self.end])


@dataclass(frozen=True, slots=True)
class Prompt:
    """Tokens to sample from."""

    tokens: tuple[int, ...]
    messages: tuple[Message, ...] = ()
    """The conversation as it was rendered."""
    shown: tuple[Any, ...] = ()
    place: Place | None = None
    """Place whose tokens it continues; None for a new conversation."""
    more: tuple[Message, ...] = ()
    """Messages after that place."""


@dataclass(slots=True)
class History:
    """Places of a session."""

    places: list[Place] = field(default_factory=list)

    def prompt_of(self, messages: Sequence[Message], renderer: Renderer, tools: str) -> Prompt:
        """Returns the tokens of a conversation: those of the longest one known that it continues, with the messages
        since; rendered as a whole if there is none, or if the chat template rewrites it."""
        shown = tuple(map(_comparable, messages))
        place = self._longest(shown, tools)
        if place is None:
            return Prompt(renderer.prompt_tokens(messages), tuple(messages), shown)
        more = tuple(messages[len(place.shown) :])
        said = renderer.text_of(place.before, place.reply)
        between = renderer.continue_chat(place.before, place.reply, said, more)
        whole = (*place.before, Message("assistant", said), *more)
        if between is None:
            return Prompt(renderer.prompt_tokens(whole), whole, shown)
        return Prompt(place.tokens + between, whole, shown, place, more)

    def tokens_of(self, tokens: tuple[int, ...]) -> Prompt:
        """Returns prompt tokens, with the place that they continue."""
        known = [each for each in self.places if not each.shown and tokens[: each.end] == each.tokens]
        return Prompt(tokens, place=max(known, key=lambda each: (each.end, not each.continued), default=None))

    def _longest(self, shown: tuple[Any, ...], tools: str) -> Place | None:
        found: Place | None = None
        for place in self.places:
            size = len(place.shown)
            longer = found is None or size > len(found.shown) or (size == len(found.shown) and found.continued)
            if longer and 0 < size < len(shown) and place.tools == tools and place.shown == shown[:size]:
                found = place
        return found


def _comparable(message: Message) -> tuple[Any, ...]:
    """Returns a message in a form that does not depend on how a client writes it. Clients strip replies, leave out
    empty ones, and write JSON their own way."""
    if message.role != "assistant":
        return (message.role, message.content, message.name)
    calls = tuple((name, json.dumps(json.loads(arguments), sort_keys=True)) for name, arguments in message.tool_calls)
    return (message.role, message.content.strip(), calls)


def shown_with(prompt: Prompt, reply: Message) -> tuple[Any, ...]:
    """Returns the conversation with a reply, as the client will send it."""
    return (*prompt.shown, _comparable(reply)) if prompt.shown else ()
