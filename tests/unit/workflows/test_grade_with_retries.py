"""Verdicts of tasks that raise or return something else."""

import asyncio
from typing import Any

import pytest

from dojang.types import Message, Outcome, Problem, Verdict
from dojang.workflows.grade_with_retries import GRADING_ATTEMPTS, grade_with_retries

PROBLEM = Problem("p/1", "p", (Message("user", "1 + 1?"),), "2")


class Mine:
    """Answers what it is told to, and counts."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    async def grade(self, problem: Problem, text: str) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (0.5, "p/1: TypeError: Mine.grade returned 0.5, not a dojang.types.Verdict"),
        (None, "p/1: TypeError: Mine.grade returned None"),
        (KeyError("x"), "p/1: KeyError: 'x' ("),
    ],
)
def test_a_result_that_is_no_verdict_is_a_judge_error(answer: Any, words: str) -> None:
    task: Any = Mine(*[answer] * GRADING_ATTEMPTS)
    verdict = asyncio.run(grade_with_retries(task, PROBLEM, "2"))
    assert (verdict.outcome, verdict.reward) == (Outcome.JUDGE_ERROR, None)
    assert verdict.detail.startswith(words)
    assert "test_grade_with_retries.py, line" in verdict.detail or not isinstance(answer, Exception)
    assert task.answers == []


def test_a_later_verdict_counts() -> None:
    task: Any = Mine(KeyError("x"), Verdict(Outcome.ACCEPTED, 1.0))
    assert asyncio.run(grade_with_retries(task, PROBLEM, "2")).outcome is Outcome.ACCEPTED
