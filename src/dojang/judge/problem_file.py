"""Reads problem files: the JSON that people write for `dojang judge run FILE --problem P.json`.

    {"tests": [{"input": "1 2", "output": "3"}], "limits": {"cpu_s": 1}, "checker": {"name": "tokens"}}
    {"public": [...], "private": [...]}
    {"function": "add", "calls": [{"args": [1, 2], "expected": 3}]}

A test is an input with its output, Python assertions ({"code", "function"}), or a function with a list of calls, each
of which becomes one test. Results of calls are compared as JSON: a tuple equals a list, floats may differ by one part
in a million, everything else must be equal. Datasets are read by `dojang.data`.
"""

import json
import math
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NoReturn

from pydantic import Field, TypeAdapter, ValidationError

from dojang.core.errors import DataError
from dojang.judge.json_schema import problem_errors
from dojang.programs import CallTest, Checker, IoTest, Limits, TestSuite

__all__ = ["Which", "read_problem"]

Which = Literal["private", "public", "all"]

# The comparison is part of the test's code, which runs in a process the program cannot reach.
SAME = """\
def same(got, expected):
    if isinstance(expected, float) and isinstance(got, (int, float)):
        return got == expected or abs(got - expected) <= 1e-6 * max(1.0, abs(expected))
    if isinstance(expected, list):
        return (isinstance(got, (list, tuple)) and len(got) == len(expected)
                and all(same(*pair) for pair in zip(got, expected)))
    if isinstance(expected, dict):
        return (isinstance(got, dict) and got.keys() == expected.keys()
                and all(same(got[key], expected[key]) for key in expected))
    return got == expected

"""
EXPLANATION = (
    "A problem is a JSON object with `tests`, or with `public` and `private` tests, or with a `function` and "
    '`calls`; a test is {"input": ..., "output": ...} or {"code": ..., "function": ...}. Correct it and try again.'
)


@dataclass(frozen=True)
class Call:
    """A function call and its expected result."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    expected: Any
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)

    def test(self, function: str) -> CallTest:
        given = [repr(each) for each in self.args] + (["**" + repr(self.kwargs)] if self.kwargs else [])
        plain = not isinstance(self.expected, float | list | dict)
        compared = "got == expected" if plain else "same(got, expected)"
        return CallTest(
            ("" if plain else SAME)
            + f"got = candidate({', '.join(given)})\n"
            + f"expected = {self.expected!r}\n"
            + f"assert {compared}, f'returned {{got!r:.200}}, expected {{expected!r:.200}}'\n",
            function,
        )


@dataclass(frozen=True)
class Calls:
    """A function and its calls."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    function: Annotated[str, Field(min_length=1)]
    calls: Annotated[list[Call], Field(min_length=1)]


Tests = list[IoTest | CallTest | Calls]


@dataclass(frozen=True)
class ProblemFile:
    """The file's schema."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    tests: Tests | None = None
    public: Tests | None = None
    private: Tests | None = None
    function: str | None = None
    calls: Annotated[list[Call], Field(min_length=1)] | None = None
    limits: Limits = field(default_factory=Limits)
    checker: Checker = field(default_factory=Checker)

    def __post_init__(self) -> None:
        split = self.public is not None or self.private is not None
        if (self.tests is not None) + split + (self.calls is not None) != 1:
            raise ValueError("give either tests, or public and private, or function and calls")
        if (self.function is None) != (self.calls is None):
            raise ValueError("give function and calls together")

    def chosen(self, which: Which) -> Tests:
        if self.function is not None and self.calls is not None:
            hidden: Tests | None = [Calls(self.function, self.calls)]
        else:
            hidden = self.private if self.tests is None else self.tests
        parts = {"public": (self.public,), "private": (hidden,), "all": (self.public, hidden)}[which]
        return [test for part in parts for test in part or ()]


PROBLEM_FILE = TypeAdapter(ProblemFile)


def read_problem(text: str, which: Which = "private") -> TestSuite:
    """Read the test suite from a problem file. Tests are private unless marked as public."""
    try:
        problem = PROBLEM_FILE.validate_python(json.loads(text, parse_constant=_refuse, parse_float=_finite))
    except ValidationError as error:
        raise _unreadable(problem_errors(error)) from None
    except (ValueError, RecursionError) as error:
        raise _unreadable([f"not valid JSON: {error}"]) from None
    tests: tuple[IoTest | CallTest, ...] = ()
    for entry in problem.chosen(which):
        tests += tuple(call.test(entry.function) for call in entry.calls) if isinstance(entry, Calls) else (entry,)
    if not tests:
        kind = "no tests" if which == "all" else f"no {which} tests"
        raise DataError(f"The problem has {kind}; add some, or choose others of private, public and all.")
    return TestSuite(tests, problem.limits, problem.checker)


def _unreadable(problems: list[str]) -> DataError:
    listed = "".join(f"\n  - {each}" for each in problems)
    return DataError(f"The problem cannot be used:{listed}\n{EXPLANATION}")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _finite(number: str) -> float:
    value = float(number)
    return value if math.isfinite(value) else _refuse(number)
