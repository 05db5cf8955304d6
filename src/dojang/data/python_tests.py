"""Reads tests of Python programs in published datasets: input/output text, or a function's arguments and result."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from dojang.data.prepare_rows import Unusable
from dojang.data.rows import CONTEST_CHECKER
from dojang.programs import CallTest

__all__ = ["judge_settings", "read_tests"]

LIMITS = {"cpu_s": 6.0, "memory_mb": 1024}
"""Limits for datasets without limits."""

_STDIN = ("stdin_stdout", "stdin", "stdio")
_FUNCTION = ("function_call", "functional")


def judge_settings(function: str) -> dict[str, Any]:
    """Returns limits, language and, for programs that read standard input, the contest checker."""
    return {"limits": LIMITS, "language": "python3", **({} if function else {"checker": CONTEST_CHECKER})}


def read_tests(published: Any, function: str = "") -> tuple[str, list[dict[str, str]]]:
    """Returns the name of the function that the tests call ("" for standard input and output), and the tests.

    Layouts: a list of {input, output} with `type` (DeepCoder) or `testtype` (LiveCodeBench), or {inputs, outputs,
    fn_name} (TACO, AReaL); each also as JSON text. `function` is the name if the tests do not have it. Raises Unusable
    without tests, or if they are of several kinds.
    """
    found = json.loads(published) if isinstance(published, str) else published
    if isinstance(found, Mapping):
        found = _listed(found)
    if not isinstance(found, list) or not found:
        raise Unusable("it has no tests")
    kinds = {_kind(each) for each in found}
    names = {_name(each) for each in found}
    if len(kinds) != 1 or len(names) != 1:
        raise Unusable("its tests are of several kinds")
    (kind,), (name,) = kinds, names
    if kind in _STDIN and not name:
        return "", [{"input": _lines(each["input"]), "output": _lines(each["output"])} for each in found]
    if kind not in _FUNCTION:
        raise Unusable("its tests are of an unknown kind")
    if not (name or function):
        raise Unusable("its tests call a function without a name")
    return name or function, [_call(name or function, each["input"], each["output"]) for each in found]


def _listed(tests: Mapping[str, Any]) -> list[dict[str, Any]]:
    pairs = zip(tests["inputs"], tests["outputs"], strict=True)
    return [{"fn_name": tests.get("fn_name"), "input": given, "output": wanted} for given, wanted in pairs]


def _kind(test: Mapping[str, Any]) -> str:
    return str(test.get("type") or test.get("testtype") or (_FUNCTION if _name(test) else _STDIN)[0])


def _name(test: Mapping[str, Any]) -> str:
    """Returns the function that a test names, in `fn_name` or in LiveCodeBench's metadata."""
    about = test.get("metadata")
    about = json.loads(about) if isinstance(about, str) and about else about
    return str(test.get("fn_name") or (about or {}).get("func_name") or "")


def _call(function: str, given: Any, expected: Any) -> dict[str, str]:
    """Makes a test that calls a function, or a method of `Solution`, with these arguments."""
    if isinstance(given, str):  # LiveCodeBench: an argument on each line, and the result, as JSON
        try:
            arguments = [json.loads(line) for line in given.split("\n") if line.strip()]
            result = json.loads(expected) if isinstance(expected, str) else expected
        except ValueError:
            raise Unusable("the arguments or the result of its function are not JSON") from None
    elif isinstance(given, list):  # TACO and others: the arguments, and a list of the one result
        arguments = given
        result = expected[0] if isinstance(expected, list) and len(expected) == 1 else expected
    else:
        raise Unusable("the arguments of its function are not a list")
    return asdict(CallTest.of(function, arguments, result))


def _lines(value: Any) -> str:
    """Joins lines to text; some datasets have lists of lines."""
    return value if isinstance(value, str) else "\n".join(map(str, value))
