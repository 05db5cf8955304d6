"""Tool calls in JSON.

Qwen2.5, Qwen3, Hermes    <tool_call>{"name": ..., "arguments": {...}}</tool_call>, or a list of calls
Llama 3.1 and later       {"name": ..., "parameters": {...}} alone, or after <|python_tag|>; several with ; between
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from dojang.tool_calls.calls import Call, CallBlock, CallFormat, MalformedCall, ToolCall, ToolSchemas

__all__ = ["BareJson", "TaggedJson"]

_OPEN, _CLOSE, _PYTHON_TAG = "<tool_call>", "</tool_call>", "<|python_tag|>"
_CLOSED = re.compile(r"\s*</tool_call>")
_REST = re.compile(r"\s*\Z")
_LAST_BLOCK = re.compile(r"```[a-z]*\n((?:(?!```).)*)```\Z", re.DOTALL)
_BEGUN = re.compile(r'\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"parameters"\s*:')
_BETWEEN = re.compile(r"[\s;]*")
_DECODER = json.JSONDecoder()
_ALONE = MalformedCall("must be the JSON object alone, without text before or after it; write it again like that")


class _Unnumbered(str):
    """A text whose lines are not counted. JSONDecodeError counts those before the error: with an error in every call,
    that takes the square of the time."""

    def count(self, *_: object) -> int:
        return 0

    def rfind(self, *_: object) -> int:
        return -1


class TaggedJson(CallFormat):
    """JSON between <tool_call> tags."""

    name = "JSON between <tool_call> tags"

    def blocks(self, text: str, tools: ToolSchemas) -> Sequence[CallBlock]:
        text = _Unnumbered(text)
        found, place = list[CallBlock](), text.find(_OPEN)
        while place >= 0:
            found.append(self._block(text, place))
            place = text.find(_OPEN, found[-1].end)
        return found or _without_tags(text)

    def _block(self, text: str, start: int) -> CallBlock:
        first = start + len(_OPEN)
        try:
            value, end = _decode(text, first)
        except (ValueError, RecursionError):
            value, end = None, first
        else:
            if closed := _CLOSED.match(text, end):
                return CallBlock(start, closed.end(), tuple(_calls(value)))
            if _REST.match(text, end):  # a stop string, or the limit of tokens, cut it after the call
                return CallBlock(start, len(text), tuple(_calls(value)))
        close = text.find(_CLOSE, first)
        inside = text[first : None if close < 0 else close]
        return CallBlock(start, len(text) if close < 0 else close + len(_CLOSE), tuple(_read(inside)))


class BareJson(CallFormat):
    """JSON objects alone, as the whole reply."""

    name = "JSON alone, with name and parameters"

    def blocks(self, text: str, tools: ToolSchemas) -> Sequence[CallBlock]:
        stripped = text.strip()
        tagged = stripped.startswith(_PYTHON_TAG)
        inside = stripped.removeprefix(_PYTHON_TAG).strip()
        calls: Sequence[Call] = _sequence(inside) or []
        if not calls and (tagged or _BEGUN.match(inside)):
            calls = _read(inside)
            if _whole(inside) and not tagged:
                calls = [_ALONE]
        if not calls:
            calls = _in_code_block(stripped) or _beside_text(inside, tools)
        return [CallBlock(0, len(text), tuple(calls))] if calls else []


def _decode(text: str, start: int) -> tuple[Any, int]:
    while start < len(text) and text[start].isspace():
        start += 1
    return _DECODER.raw_decode(text, start)


def _sequence(text: str) -> list[Call]:
    """Returns the calls of a text that consists of objects with a name and parameters; none if it does not."""
    found, place = list[Call](), 0
    while place < len(text):
        try:
            value, end = _decode(text, place)
        except (ValueError, RecursionError):
            return []
        if not _is_call(value, "parameters"):
            return []
        found.append(_call(value))
        between = _BETWEEN.match(text, end)
        place = end if between is None else between.end()
    return found


def _whole(text: str) -> bool:
    """Whether a text begins with an object that is whole."""
    try:
        _decode(text, 0)
    except (ValueError, RecursionError):
        return False
    return True


def _in_code_block(text: str) -> list[Call]:
    block = _LAST_BLOCK.search(text)
    if block is None or not _is_call(_loads(block[1]), "parameters"):
        return []
    return [MalformedCall("must be the JSON object alone, not in a code block; write it again like that")]


def _beside_text(text: str, tools: ToolSchemas) -> list[Call]:
    """Returns a malformed call for a call of a known tool with text around it: another object in an answer is none."""
    return [_ALONE] if any(match[1] in tools for match in _BEGUN.finditer(text)) else []


def _without_tags(text: str) -> list[CallBlock]:
    """Returns a malformed call for an object that lacks its tags, alone or in the last code block."""
    stripped = text.strip()
    block = _LAST_BLOCK.search(stripped)
    if not _is_call(_loads(block[1] if block else stripped), "arguments", "parameters"):
        return []
    reason = "must stand between <tool_call> and </tool_call>; write it again like that"
    return [CallBlock(0, len(text), (MalformedCall(reason),))]


def _loads(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_call(found: object, *names: str) -> bool:
    """Whether this is an object with a name and arguments, under one of these names: another answer in JSON is none."""
    return isinstance(found, dict) and "name" in found and any(each in found for each in names)


def _read(text: str) -> list[Call]:
    try:
        return _calls(json.loads(text))
    except (ValueError, RecursionError) as error:
        return [MalformedCall(f"is no valid JSON: {error}")]


def _calls(found: object) -> list[Call]:
    return [_call(each) for each in (found if isinstance(found, list) and found else [found])]


def _call(found: object) -> Call:
    if not isinstance(found, dict) or not isinstance(name := found.get("name"), str):
        return MalformedCall('needs a "name" and "arguments"')
    arguments = found.get("arguments", found.get("parameters", {}))
    if isinstance(arguments, str):  # as in OpenAI's API
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return MalformedCall('"arguments" is no valid JSON')
    if not isinstance(arguments, dict):
        return MalformedCall('"arguments" must be an object')
    return ToolCall(name, arguments)
