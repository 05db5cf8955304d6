"""Parses tool calls in replies, in the formats that chat templates teach.

    Qwen2.5, Qwen3, Hermes             <tool_call>{"name": ..., "arguments": {...}}</tool_call>, or a list of calls
    Llama 3.1 and later                {"name": ..., "parameters": {...}} alone, or after <|python_tag|>

Parsing is exact: a call that is not valid JSON, lacks its name or its arguments, or stands in a code block instead of
its tags is malformed, and the model is told so.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["MalformedCall", "ToolCall", "parse_calls"]

_TAG = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_PYTHON_TAG = "<|python_tag|>"
_LAST_BLOCK = re.compile(r"```[a-z]*\n((?:(?!```).)*)```\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """Text that was meant as a tool call, and why it is none."""

    text: str
    reason: str


def parse_calls(reply: str) -> list[ToolCall | MalformedCall]:
    """Returns the tool calls of a reply, in order; none for an answer. Calls inside thinking do not count."""
    text = _after_thinking(reply)
    tagged = [match[1] for match in _TAG.finditer(text)]
    if tagged:
        return [call for each in tagged for call in _read(each)]
    stripped = text.strip()
    if stripped.startswith(_PYTHON_TAG) or _looks_like_call(stripped, "parameters"):
        return _read(stripped.removeprefix(_PYTHON_TAG))
    block = _LAST_BLOCK.search(stripped)
    if _looks_like_call(block[1] if block else stripped, "arguments"):
        return [MalformedCall(stripped, "must stand between <tool_call> and </tool_call>; write it again like that")]
    if block and _looks_like_call(block[1], "parameters"):
        return [MalformedCall(stripped, "must be the JSON object alone, not in a code block; write it again like that")]
    return []


def _after_thinking(reply: str) -> str:
    """Returns the text after the thinking, nothing if it never ended. Tags in the arguments of calls are no thinking,
    and the prompt may have opened it."""
    if reply.lstrip().startswith("<think>"):
        return reply.partition("</think>")[2]
    outside = _TAG.sub(lambda call: " " * len(call[0]), reply)
    if (end := outside.find("</think>")) >= 0:
        end += len("</think>")
    return "" if "<think>" in outside[max(end, 0) :] else reply[max(end, 0) :]


def _looks_like_call(text: str, *names: str) -> bool:
    """Whether text is an object with a name and arguments, under one of these names: another answer in JSON is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and "name" in found and any(each in found for each in names)


def _read(text: str) -> list[ToolCall | MalformedCall]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        return [MalformedCall(text.strip(), f"is no valid JSON: {error}")]
    return [_call(each, text) for each in (found if isinstance(found, list) and found else [found])]


def _call(found: object, text: str) -> ToolCall | MalformedCall:
    if not isinstance(found, dict) or not isinstance(name := found.get("name"), str):
        return MalformedCall(text.strip(), 'needs a "name" and "arguments"')
    arguments = found.get("arguments", found.get("parameters", {}))
    if isinstance(arguments, str):  # as in OpenAI's API
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return MalformedCall(text.strip(), '"arguments" is no valid JSON')
    if not isinstance(arguments, dict):
        return MalformedCall(text.strip(), '"arguments" must be an object')
    return ToolCall(name, arguments)
