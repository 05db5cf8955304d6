"""One plain run of a program: what it wrote and how it ended, with nothing to compare it with.

This is what a service for strangers' clients needs; whether an output is right is their business. Judging
against tests is `dojang.protocols.Judge`.
"""

from dataclasses import dataclass
from typing import Protocol

from dojang.programs import Limits, Ran
from dojang.types import Outcome

__all__ = ["Execution", "Runner"]


@dataclass(frozen=True, slots=True)
class Execution:
    """What became of a program that was run once."""

    compiled: bool
    """True for a language that needs no compiler, unless its program could not even be read (a syntax error)."""
    compile_log: str
    """What the compiler said; a failure of the machinery is explained here when nothing ran."""
    ran: Ran | None
    """None if the program never started."""
    stdout: bytes
    """All of it, up to the output limit."""
    stderr: bytes
    outcome: Outcome
    """ACCEPTED: it ended by itself with exit code 0. TIME_LIMIT without `compiled`: the compiler took too long."""


class Runner(Protocol):
    """Runs programs without tests."""

    async def run(self, language: str, source: str, stdin: str, limits: Limits) -> Execution:
        """Run a program once. A failure of the machinery is a JUDGE_ERROR execution, not an exception."""
