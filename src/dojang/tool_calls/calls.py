"""Tool calls, and the base class of their formats."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

__all__ = ["Call", "CallBlock", "CallFormat", "MalformedCall", "ParsedReply", "ToolCall", "ToolSchemas"]

ToolSchemas: TypeAlias = Mapping[str, Mapping[str, Any]]
"""JSON schemas of the arguments of each tool, by the tool's name and the argument's."""
_THINK, _END_OF_THINKING = "<think>", "</think>"
_MOST_NESTED = 100
"""Deepest nesting of arguments. Python's own limit depends on the caller: what was parsed could not be sent."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """Text that was meant as a tool call, and why it is none."""

    reason: str
    text: str = ""
    """The whole text of the calls that it was written with, such as those of a list; `parse` fills it in."""


Call: TypeAlias = ToolCall | MalformedCall


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """A reply, taken apart."""

    content: str
    """Text before the first call, with the thinking; the whole reply if it has no call."""
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True)
class CallBlock:
    """A part of a text with calls."""

    start: int
    end: int
    calls: tuple[Call, ...]


class CallFormat(ABC):
    """A format of tool calls."""

    name: str
    """Name of the format, for error messages."""

    def parse(self, reply: str, tools: ToolSchemas) -> ParsedReply:
        """Returns the calls of a reply, in order. Calls inside thinking do not count, nor do tags of thinking inside
        the arguments of calls. The prompt may have opened the thinking."""
        answer = self._end_of_thinking(reply, tools)
        if answer is None:
            return ParsedReply(reply)
        text = reply[answer:]
        blocks = self.blocks(text, tools)
        if not blocks:
            return ParsedReply(reply)
        calls = tuple(_checked(call, text[block.start : block.end]) for block in blocks for call in block.calls)
        return ParsedReply(reply[: answer + blocks[0].start].strip(), calls)

    @abstractmethod
    def blocks(self, text: str, tools: ToolSchemas) -> Sequence[CallBlock]:
        """Returns the parts of a text that are calls, in order; none for an answer."""

    def _end_of_thinking(self, reply: str, tools: ToolSchemas) -> int | None:
        """Returns where the thinking ends; None if it never does."""
        if reply.lstrip().startswith(_THINK):
            end = reply.find(_END_OF_THINKING)
            return None if end < 0 else end + len(_END_OF_THINKING)
        if _END_OF_THINKING not in reply and _THINK not in reply:
            return 0
        parts, place = list[str](), 0
        for block in self.blocks(reply, tools):
            parts += [reply[place : block.start], " " * (block.end - block.start)]
            place = block.end
        outside = "".join([*parts, reply[place:]])
        end = outside.find(_END_OF_THINKING)
        end = 0 if end < 0 else end + len(_END_OF_THINKING)
        return None if _THINK in outside[end:] else end


def _checked(call: Call, text: str) -> Call:
    """Returns a call that can be sent as JSON, to clients and in records; else a malformed one, with its text."""
    if isinstance(call, MalformedCall):
        return MalformedCall(call.reason, text)
    try:
        if _depth(call.arguments) > _MOST_NESTED:
            raise ValueError("nested too deeply")
        (call.name + json.dumps(call.arguments, allow_nan=False, ensure_ascii=False)).encode()
    except (ValueError, RecursionError) as error:  # 1e999 is infinite, \ud800 is half a character
        return MalformedCall(f"has a name or an argument that is no JSON: {error}", text)
    return call


def _depth(value: object) -> int:
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, inside), default=0)
