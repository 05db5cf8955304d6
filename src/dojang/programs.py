"""The nouns of judging programs.

Submission (program + Exam) ──► Judgement (one Ran per test)
            tests, limits, checker

They are plain data: a JSON object of the same shape is a problem file, a request to the judge service and its
reply. What a judgement is worth is not said here; that is the task's business.
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

from dojang.types import Outcome

__all__ = [
    "CallTest",
    "Checker",
    "CheckerName",
    "Exam",
    "IoTest",
    "Isolation",
    "Judgement",
    "Limits",
    "Ran",
    "Stop",
    "Submission",
    "encoded",
    "fold",
    "sampled",
]

_CALL = """\
import json

def plain(value):
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value

assert plain(candidate(*json.loads({arguments!r}))) == json.loads({expected!r})"""

T = TypeVar("T")
CheckerName = Literal["tokens", "exact", "floats", "caseless", "contest", "unordered", "program"]


class Isolation(StrEnum):
    """What stands between a judged program and the machine, strongest first."""

    NAMESPACES = "namespaces"
    """A file system, process list and network of its own, and all that follows."""
    LANDLOCK = "landlock"
    """The kernel refuses every file outside the toolchain, and all that follows."""
    SECCOMP = "seccomp"
    """Programs cannot open files, make processes or use the network."""
    NONE = "none"
    """Limits only. Never chosen unless asked for by name."""


class Stop(StrEnum):
    """After which test to stop. Choose one that cannot change the reward."""

    NEVER = "never"
    TIME_LIMIT = "time_limit"
    """At the first test over a time limit."""
    FAILURE = "failure"
    """At the first test that is not passed."""


@dataclass(frozen=True)
class Limits:
    """What a program may use for one test. Time is processor time: a busy machine does not change a verdict."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "allow_inf_nan": False}

    cpu_s: float = 2.0
    """Processor seconds."""
    wall_s: float | None = None
    """Seconds it may spend neither running nor waiting for a core (sleeping, say); twice cpu_s if not given."""
    memory_mb: int = 256
    """Memory touched."""
    output_mb: float = 16.0
    """Written to standard output."""
    processes: int = 16
    """Threads at a time. Making further processes is always refused."""
    file_mb: float = 16.0
    """Size of a file in the program's private /tmp; no less than output_mb, for standard output is a file, too."""
    stack_mb: int | None = None
    """Size of the stack; as memory_mb if not given."""
    compile_s: float = 15.0
    """Processor seconds for compiling."""

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
                raise ValueError(f"limits.{name}={value} is out of range; choose {low:g} to {high:g}")

    @property
    def idle_s(self) -> float:
        return 2 * self.cpu_s if self.wall_s is None else self.wall_s

    @property
    def stack_bytes(self) -> int:
        return (self.memory_mb if self.stack_mb is None else self.stack_mb) << 20


@dataclass(frozen=True, slots=True)
class Checker:
    """How an output is compared with the expected one."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "allow_inf_nan": False}

    name: CheckerName = "tokens"
    tolerance: float = 1e-6
    """For floats and contest: absolute or relative, whichever is kinder."""
    language: str = ""
    source: str = ""
    """For program: called with the paths of the input, the output and the expected output. It exits with 0 to
    accept (unless it prints the number 0) and with 1 or 2 to refuse; anything else is a failure of the judge."""

    def __post_init__(self) -> None:
        if (self.name == "program") != bool(self.source and self.language):
            raise ValueError("a checker named 'program' needs a language and a source; no other has them")
        if not (math.isfinite(self.tolerance) and self.tolerance >= 0):
            raise ValueError(f"checker.tolerance={self.tolerance} must be 0 or more")


@dataclass(frozen=True, slots=True)
class IoTest:
    """Text in, text out."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    input: str
    output: str


@dataclass(frozen=True, slots=True)
class CallTest:
    """Python assertions about functions the program defines.

    The code runs in a process of its own; the functions it calls run in the program's. What it compares with
    is therefore out of the program's reach.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    code: str
    function: str = ""
    """Bound to the name `candidate`. A method of `Solution` is found by its own name, too."""

    @classmethod
    def of(cls, function: str, arguments: list[Any], expected: Any) -> "CallTest":
        """One call with these arguments. Its result is compared as JSON has it: a tuple is as good as a list."""
        return cls(_CALL.format(arguments=json.dumps(arguments), expected=json.dumps(expected)), function)


@dataclass(frozen=True)
class Exam:
    """What a program must do."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    tests: tuple[IoTest | CallTest, ...]
    limits: Limits = field(default_factory=Limits)
    checker: Checker = field(default_factory=Checker)

    def __post_init__(self) -> None:
        if not self.tests:
            raise ValueError("an exam needs at least one test")

    @cached_property
    def digest(self) -> str:
        """Equal for equal exams."""
        return _digest(repr((self.limits, self.checker)), *chain.from_iterable(map(_parts, self.tests)))


@dataclass(frozen=True, slots=True)
class Submission:
    """A program to be judged."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    language: str
    source: str
    exam: Exam
    stop: Stop = Stop.NEVER

    @property
    def digest(self) -> str:
        """Equal for submissions that must get the same judgement."""
        return _digest(self.language, self.source, self.exam.digest, self.stop)


@dataclass(frozen=True, slots=True)
class Ran:
    """What one test came to."""

    test: int
    """Its position in the exam."""
    outcome: Outcome
    cpu_s: float = 0.0
    wall_s: float = 0.0
    memory_mb: float = 0.0
    exit_code: int | None = None
    signal: str | None = None
    """SIGSEGV, SIGSYS (a forbidden system call), ..."""
    detail: str = ""
    output: str = ""
    """The beginning of standard output, kept for tests that failed."""
    errors: str = ""
    """The end of standard error, kept for tests that failed."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What became of a submission."""

    outcome: Outcome
    ran: tuple[Ran, ...]
    """In the order of the exam; shorter than it if judging stopped early."""
    total: int
    isolation: Isolation
    detail: str = ""
    """Compiler messages, the first failure, or what went wrong with the machinery."""
    seconds: float = 0.0
    """Wall time from submission to judgement."""

    @property
    def passed(self) -> int:
        return sum(ran.outcome is Outcome.ACCEPTED for ran in self.ran)

    @property
    def first_failure(self) -> Ran | None:
        return next((ran for ran in self.ran if ran.outcome is not Outcome.ACCEPTED), None)


def fold(ran: Iterable[Ran]) -> Outcome:
    """One outcome for all tests: a failure of the machinery before all, then a time limit, then the first failure."""
    outcomes = [each.outcome for each in ran]
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
    """A source, an input or an output as bytes; half a character, which JSON can hold, must not stop anybody."""
    return text.encode("utf-8", "surrogatepass")


def _parts(test: IoTest | CallTest) -> tuple[str, ...]:
    return ("io", test.input, test.output) if isinstance(test, IoTest) else ("call", test.code, test.function)


def _digest(*parts: str) -> str:
    state = hashlib.sha256()
    for part in parts:
        data = encoded(part)
        state.update(len(data).to_bytes(8, "little") + data)
    return state.hexdigest()
