"""Tests of Python programs as published datasets have them: text in and out, or a function's arguments and result."""

from dataclasses import asdict
from typing import Any

from dojang.programs import CallTest

__all__ = ["LIMITS", "call", "text"]

LIMITS = {"cpu_s": 6.0, "memory_mb": 1024}
"""Where a dataset has none of its own."""


def text(given: Any, expected: Any) -> dict[str, str]:
    """Standard input and output; some datasets have lists of lines."""
    return {"input": _lines(given), "output": _lines(expected)}


def call(function: str, arguments: list[Any], expected: Any) -> dict[str, str]:
    """A function, or a method of `Solution`, called with these arguments."""
    return asdict(CallTest.of(function, arguments, expected))


def _lines(value: Any) -> str:
    return value if isinstance(value, str) else "\n".join(map(str, value))
