"""Tool calls as a list of Python calls.

LFM2    <|tool_call_start|>[NAME(KEY=VALUE, ...), ...]<|tool_call_end|>
"""

import ast
import re
from collections.abc import Sequence
from typing import Any

from dojang.tool_calls.calls import Call, CallBlock, CallFormat, MalformedCall, ToolCall, ToolSchemas

__all__ = ["PythonCalls"]

_OPEN, _CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"
_STRING = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_BLOCK = re.compile(rf"{re.escape(_OPEN)}((?:{_STRING}|[^'\"])*?){re.escape(_CLOSE)}", re.DOTALL)
_CONSTANTS = {"true": True, "false": False, "null": None}
_FORM = f"{_OPEN}[NAME(KEY=VALUE)]{_CLOSE}; write it again like that"


class PythonCalls(CallFormat):
    """Python calls with keyword arguments, whose values are literals of Python or JSON."""

    name = "a list of Python calls"

    def blocks(self, text: str, tools: ToolSchemas) -> Sequence[CallBlock]:
        found, place = list[CallBlock](), text.find(_OPEN)
        while place >= 0:
            block = _BLOCK.match(text, place)
            if block is not None:
                found.append(CallBlock(place, block.end(), tuple(_read(block[1], block[0]))))
            else:  # a string that does not end, or no closing tag
                close = text.find(_CLOSE, place)
                stop = len(text) if close < 0 else close + len(_CLOSE)
                inside = text[place + len(_OPEN) : None if close < 0 else close]
                found.append(CallBlock(place, stop, tuple(_read(inside, text[place:stop]))))
            place = text.find(_OPEN, found[-1].end)
        return found


def _read(inside: str, text: str) -> list[Call]:
    try:
        listed = ast.parse(inside.strip(), mode="eval").body
        if not isinstance(listed, ast.List) or not listed.elts:
            raise ValueError("not a list of calls")
        return [_call(each) for each in listed.elts]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        return [MalformedCall(text, f"is no list of Python calls ({reason}); it must have the form {_FORM}")]


def _call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with keyword arguments")
    arguments = {}
    for each in node.keywords:
        if each.arg is None or each.arg in arguments:
            raise ValueError("an argument without a name, or given twice")
        arguments[each.arg] = _value(each.value)
    return ToolCall(ast.unparse(node.func), arguments)


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.List):
        return [_value(each) for each in node.elts]
    if isinstance(node, ast.Dict):
        return {_key(key): _value(value) for key, value in zip(node.keys, node.values, strict=True)}
    try:
        found = ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"{ast.unparse(node)[:80]!r} is no literal") from None
    if not isinstance(found, str | int | float | bool | None):
        raise ValueError(f"{ast.unparse(node)[:80]!r} is no value of JSON")
    return found


def _key(node: ast.expr | None) -> str:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        raise ValueError("a key that is no string")
    return node.value
