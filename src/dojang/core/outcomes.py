"""How a completion was graded, and how a program did on one test."""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Outcome", "TestResult"]


class Outcome(StrEnum):
    """Result of grading a completion. JUDGE_ERROR is an infrastructure failure, never the completion's fault."""

    ACCEPTED = "accepted"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    TIME_LIMIT = "time_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    JUDGE_ERROR = "judge_error"


@dataclass(frozen=True, slots=True)
class TestResult:
    """Result of one test."""

    __test__ = False  # pytest would collect the class otherwise

    test: int
    """Index of the test."""
    outcome: Outcome
    cpu_s: float = 0.0
    wall_s: float = 0.0
    memory_mb: float = 0.0
    exit_code: int | None = None
    signal: str | None = None
    """SIGSEGV, SIGSYS (a forbidden system call), ..."""
    detail: str = ""
    output: str = ""
    """First part of standard output, for failed tests."""
    errors: str = ""
    """Last part of standard error, for failed tests."""
