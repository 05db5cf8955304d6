"""A fake judge with given outcomes, and small problems."""

from collections.abc import Callable, Sequence
from typing import Any

from dojang.programs import Isolation, Judgement, Submission, TestResult, fold
from dojang.types import Message, Outcome, Problem

Says = Callable[[Submission, int], Sequence[Outcome]]


class FakeJudge:
    """`says` gets a submission and the number of earlier ones, and returns an outcome for each test."""

    def __init__(self, says: Says, cpu_s: float = 0.01) -> None:
        self._says, self._cpu_s = says, cpu_s
        self.seen: list[Submission] = []

    async def judge(self, submission: Submission) -> Judgement:
        outcomes = self._says(submission, len(self.seen))
        self.seen.append(submission)
        results = tuple(TestResult(place, outcome, self._cpu_s) for place, outcome in enumerate(outcomes))
        return Judgement(fold(results), results, len(submission.test_suite.tests), Isolation.NONE, "as it was told")

    async def close(self) -> None:
        pass


def problem(reference: Any, statement: str = "Add the numbers.", id: str = "made up/1") -> Problem:
    return Problem(id, "made up", (Message("user", statement),), reference)


def sums(count: int = 6, **fields: Any) -> dict[str, Any]:
    """Returns a reference with tests that add two numbers."""
    tests = [{"input": f"{at} {at + 3}\n", "output": f"{2 * at + 3}\n"} for at in range(count)]
    return {"private": tests, "language": "python3", **fields}
