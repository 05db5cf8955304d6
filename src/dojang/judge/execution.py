"""Result of one run of a program without tests: its output and how it ended.

For services whose clients compare outputs themselves. Judging against tests is `dojang.protocols.Judge`.
"""

from dataclasses import dataclass
from typing import Protocol

from dojang.programs import Limits, TestResult
from dojang.types import Outcome

__all__ = ["Execution", "Runner"]


@dataclass(frozen=True, slots=True)
class Execution:
    """Result of running a program once."""

    compiled: bool
    """True also for languages without a compiler, unless the program has a syntax error."""
    compile_log: str
    """The compiler's messages, or the judge's error if nothing ran."""
    result: TestResult | None
    """None if the program never started."""
    stdout: bytes
    """Complete output, up to the output limit."""
    stderr: bytes
    outcome: Outcome
    """ACCEPTED: exit code 0. TIME_LIMIT without `compiled`: the compiler took too long."""


class Runner(Protocol):
    """Runs programs without tests."""

    async def run(self, language: str, source: str, stdin: str, limits: Limits) -> Execution:
        """Run a program once. A failure of the judge is returned as JUDGE_ERROR, not raised."""
