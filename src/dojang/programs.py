"""Records of the judge: programs, their tests, and the results.

Submission (program + TestSuite) ──► Judgement (one TestResult per test)
            tests, limits, checker

They are plain data: a JSON object of the same shape is a problem file, a request to the judge service and its
reply. Rewards are not defined here; the task turns a judgement into one (tasks/code.py).
"""

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import chain
from random import Random
from typing import Any, ClassVar, Literal, TypeVar

from dojang.types import Outcome, TestResult

__all__ = [
    "CallTest",
    "Checker",
    "CheckerName",
    "IoTest",
    "Isolation",
    "JudgeInput",
    "Judgement",
    "Limits",
    "Stop",
    "Submission",
    "TestResult",
    "TestSuite",
    "encoded",
    "fold",
    "sampled",
]

_PLAIN = """\
def plain(value):
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value
"""
_CALL = f"""\
import json

{_PLAIN}
assert plain(candidate(*json.loads({{arguments!r}}))) == json.loads({{expected!r}})"""
_LITERAL_CALL = f"""\
{_PLAIN}
assert plain(candidate(*{{arguments!r}})) == plain({{expected!r}})"""

T = TypeVar("T")
CheckerName = Literal["tokens", "exact", "floats", "caseless", "contest", "unordered", "program"]


class Isolation(StrEnum):
    """Sandbox isolation of judged programs, strongest first."""

    NAMESPACES = "namespaces"
    """Linux namespaces: private file system, process list and network; plus all of the below."""
    LANDLOCK = "landlock"
    """Landlock: the kernel refuses access to files outside the toolchain; plus all of the below."""
    SECCOMP = "seccomp"
    """Seccomp: programs cannot open files, start processes or use the network."""
    NONE = "none"
    """Resource limits only. Used only if named explicitly."""


class Stop(StrEnum):
    """Early stopping of judging. Choose one that cannot change the reward."""

    NEVER = "never"
    TIME_LIMIT = "time_limit"
    """At the first test over a time limit."""
    FAILURE = "failure"
    """At the first test that is not passed."""


@dataclass(frozen=True)
class Limits:
    """Resource limits for one test. Time is CPU time: a busy machine does not change a verdict."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "allow_inf_nan": False}

    cpu_s: float = 2.0
    """CPU seconds."""
    wall_s: float | None = None
    """Seconds it may spend neither running nor waiting for a core (e.g. sleeping); default: twice cpu_s."""
    memory_mb: int = 256
    """Resident memory in MiB."""
    output_mb: float = 16.0
    """Standard output in MiB."""
    processes: int = 16
    """Number of threads at a time. Starting processes is always refused."""
    file_mb: float = 16.0
    """File size in the program's private /tmp; at least output_mb, because standard output is a file."""
    stack_mb: int | None = None
    """Stack size; default: memory_mb."""
    compile_s: float = 15.0
    """CPU seconds for compilation."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("cpu_s", 0.01, 3600.0),
            ("wall_s", 0.01, 36000.0),
            ("memory_mb", 8, 2**20),
            ("output_mb", 0.001, 1024.0),
            ("processes", 1, 4096),
            ("file_mb", 0.0, 1024.0),
            ("stack_mb", 1, 2**20),
            ("compile_s", 0.1, 3600.0),
        ):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and low <= value <= high):
                raise ValueError(f"limits.{name}={value} is out of range; choose {low:g} to {high:.7g}")

    @property
    def idle_s(self) -> float:
        return 2 * self.cpu_s if self.wall_s is None else self.wall_s

    @property
    def stack_bytes(self) -> int:
        return (self.memory_mb if self.stack_mb is None else self.stack_mb) << 20


@dataclass(frozen=True, slots=True)
class Checker:
    """Comparison of a program's output with the expected output."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "allow_inf_nan": False}

    name: CheckerName = "tokens"
    tolerance: float = 1e-6
    """Tolerance of floats and contest: absolute or relative, whichever is larger."""
    language: str = ""
    source: str = ""
    """Source of a checker program, called with the paths of the input, the output and the expected output. Exit code 0
    accepts (unless it prints the number 0), 1 or 2 rejects; any other is a judge error."""

    def __post_init__(self) -> None:
        if (self.name == "program") != bool(self.source and self.language):
            raise ValueError("a checker named 'program' needs a language and a source; no other has them")
        if not (math.isfinite(self.tolerance) and self.tolerance >= 0):
            raise ValueError(f"checker.tolerance={self.tolerance} must be 0 or more")


@dataclass(frozen=True, slots=True)
class IoTest:
    """Test with standard input and expected standard output."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    input: str
    output: str


@dataclass(frozen=True, slots=True)
class CallTest:
    """Python assertions about functions that the program defines.

    The assertions run in a separate process and call the functions in the program's process, so the program cannot
    read or change the expected values.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    code: str
    function: str = ""
    """Function bound to the name `candidate`. Methods of a class `Solution` are found as well."""

    @classmethod
    def of(cls, function: str, arguments: list[Any], expected: Any) -> "CallTest":
        """One call with these arguments. The result is compared as JSON: a tuple equals a list."""
        return cls(_CALL.format(arguments=json.dumps(arguments), expected=json.dumps(expected)), function)

    @classmethod
    def of_literals(cls, function: str, arguments: list[Any], expected: Any) -> "CallTest":
        """One call with these arguments, which are Python literals, such as tuples and sets. In the result, too, a
        tuple equals a list."""
        return cls(_LITERAL_CALL.format(arguments=arguments, expected=expected), function)


@dataclass(frozen=True)
class TestSuite:
    """Test suite of a program: tests, limits and checker."""

    __test__ = False  # pytest would collect the class otherwise

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    tests: tuple[IoTest | CallTest, ...]
    limits: Limits = field(default_factory=Limits)
    checker: Checker = field(default_factory=Checker)

    def __post_init__(self) -> None:
        if not self.tests:
            raise ValueError("a test suite needs at least one test")

    @cached_property
    def digest(self) -> str:
        """Hash of the contents."""
        return _digest(repr((self.limits, self.checker)), *chain.from_iterable(map(_parts, self.tests)))


@dataclass(frozen=True, slots=True)
class JudgeInput:
    """A problem in the form that the judge takes."""

    language: str
    prefix: str
    """Code put before the program."""
    test_suite: TestSuite


@dataclass(frozen=True, slots=True)
class Submission:
    """A program to judge, with its tests."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    language: str
    source: str
    test_suite: TestSuite
    stop: Stop = Stop.NEVER

    @property
    def digest(self) -> str:
        """Hash of the contents; equal submissions get the same judgement."""
        return _digest(self.language, self.source, self.test_suite.digest, self.stop)


@dataclass(frozen=True, slots=True)
class Judgement:
    """Result of judging a submission."""

    outcome: Outcome
    results: tuple[TestResult, ...]
    """Results in the order of the tests; fewer if judging stopped early."""
    total: int
    isolation: Isolation
    detail: str = ""
    """Compiler messages, the first failure, or the infrastructure error."""
    seconds: float = 0.0
    """Wall time from submission to judgement."""

    @property
    def passed(self) -> int:
        return sum(result.outcome is Outcome.ACCEPTED for result in self.results)

    @property
    def first_failure(self) -> TestResult | None:
        return next((result for result in self.results if result.outcome is not Outcome.ACCEPTED), None)


def fold(results: Iterable[TestResult]) -> Outcome:
    """Overall outcome: a judge error first, then a time limit, then the first failure."""
    outcomes = [each.outcome for each in results]
    for first in (Outcome.JUDGE_ERROR, Outcome.TIME_LIMIT):
        if first in outcomes:
            return first
    return next((outcome for outcome in outcomes if outcome is not Outcome.ACCEPTED), Outcome.ACCEPTED)


def sampled(tests: Sequence[T], most: int, seed: int) -> tuple[T, ...]:
    """At most `most` of the tests, in their order; the same ones for the same seed."""
    if len(tests) <= most:
        return tuple(tests)
    chosen = sorted(Random(seed).sample(range(len(tests)), most))
    return tuple(tests[index] for index in chosen)


def encoded(text: str) -> bytes:
    """Text as UTF-8 bytes. Lone surrogates, which JSON can hold, are passed through."""
    return text.encode("utf-8", "surrogatepass")


def _parts(test: IoTest | CallTest) -> tuple[str, ...]:
    return ("io", test.input, test.output) if isinstance(test, IoTest) else ("call", test.code, test.function)


def _digest(*parts: str) -> str:
    state = hashlib.sha256()
    for part in parts:
        data = encoded(part)
        state.update(len(data).to_bytes(8, "little") + data)
    return state.hexdigest()
