"""Tool calls as a list of Python calls.

LFM2    <|tool_call_start|>[NAME(KEY=VALUE, ...), ...]<|tool_call_end|>
"""

import ast
import re
import warnings
from collections.abc import Sequence
from typing import Any

from dojang.tool_calls.calls import Call, CallBlock, CallFormat, MalformedCall, ToolCall, ToolSchemas

__all__ = ["PythonCalls"]

_OPEN, _CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"
_STRING = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_BLOCK = re.compile(rf"{re.escape(_OPEN)}((?:{_STRING}|[^'\"])*?){re.escape(_CLOSE)}", re.DOTALL)
_CONSTANTS = {"true": True, "false": False, "null": None}
_FORM = f"{_OPEN}[NAME(KEY=VALUE)]{_CLOSE}; write it again like that"
_FILE = "<tool call>"
# Python warns on stderr of code like '\d' and `1if 2else 3`, here of what a model wrote. The filter holds for calls
# alone, by their file name, and is set once: catch_warnings is not thread-safe.
warnings.filterwarnings("ignore", module=re.escape(_FILE))


class PythonCalls(CallFormat):
    """Python calls with keyword arguments, whose values are literals of Python or JSON."""

    name = "a list of Python calls"

    def blocks(self, text: str, tools: ToolSchemas) -> Sequence[CallBlock]:
        found, place, strings_end = list[CallBlock](), text.find(_OPEN), True
        while place >= 0:
            # Behind a string that never ends, a closing tag inside a string ends the call, too: to look for the end of
            # the strings of each call would take the square of the time.
            block = _BLOCK.match(text, place) if strings_end else None
            if block is not None:
                found.append(CallBlock(place, block.end(), tuple(_read(block[1]))))
            else:
                strings_end, close = False, text.find(_CLOSE, place)
                inside = text[place + len(_OPEN) : None if close < 0 else close]
                end = len(text) if close < 0 else close + len(_CLOSE)
                found.append(CallBlock(place, end, tuple(_read(inside))))
            place = text.find(_OPEN, found[-1].end)
        return found


def _read(inside: str) -> list[Call]:
    try:
        listed = ast.parse(inside.strip(), _FILE, mode="eval").body
        if not isinstance(listed, ast.List) or not listed.elts:
            raise ValueError("not a list of calls")
        return [_call(each) for each in listed.elts]
    except (RecursionError, MemoryError):
        reason = "nested too deeply"
    except (SyntaxError, ValueError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
    return [MalformedCall(f"is no list of Python calls ({reason}); it must have the form {_FORM}")]


def _call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with keyword arguments")
    arguments = {}
    for each in node.keywords:
        if each.arg is None or each.arg in arguments:
            raise ValueError("an argument without a name, or given twice")
        try:
            arguments[each.arg] = _value(each.value)
        except ValueError as error:
            raise ValueError(f"the argument {each.arg} has {error}") from None
    return ToolCall(ast.unparse(node.func), arguments)


def _value(node: ast.expr | None) -> Any:
    """Returns the value of a literal. Not ast.literal_eval, which raises many exceptions and knows values that are no
    JSON. Raises ValueError."""
    match node:
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.List(elts=elements):
            return [_value(each) for each in elements]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True)}
        case ast.Constant(value=str() | int() | float() | None as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)) if not isinstance(
            value, bool
        ):
            return -value
    raise ValueError("a value that is no JSON")


def _key(node: ast.expr | None) -> str:
    match node:
        case ast.Constant(value=str() as key):
            return key
    raise ValueError("a key that is no string")
