"""Tests of Python programs as published datasets have them: text in and text out, or a function's arguments and result.

A result is compared as JSON has it, so that a tuple is as good as a list.
"""

import json
from typing import Any

__all__ = ["LIMITS", "call", "text"]

LIMITS = {"cpu_s": 6.0, "memory_mb": 1024}
"""Where a dataset has none of its own."""

_CALL = """\
import json

def plain(value):
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value

assert plain(candidate(*json.loads({arguments!r}))) == json.loads({expected!r})"""


def text(given: Any, expected: Any) -> dict[str, str]:
    """Standard input and output; some datasets have lists of lines."""
    return {"input": _lines(given), "output": _lines(expected)}


def call(function: str, arguments: list[Any], expected: Any) -> dict[str, str]:
    """A function, or a method of `Solution`, called with these arguments."""
    return {"code": _CALL.format(arguments=json.dumps(arguments), expected=json.dumps(expected)), "function": function}


def _lines(value: Any) -> str:
    return value if isinstance(value, str) else "\n".join(map(str, value))
