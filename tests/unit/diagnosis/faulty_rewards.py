"""Reward functions and a task with faults, for real runs that go wrong."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from dojang.tasks.answers import is_correct
from dojang.types import Outcome, Problem, Verdict


def brief(problem: Any, text: str) -> float:
    """Pays for short completions, right or wrong."""
    return 1.0 - min(1.0, len(text) / 60)


def broken(problem: Any, text: str) -> float:
    """Cannot grade completions with a 5."""
    if "5" in text:
        raise ValueError("no connection to the grader")
    return 0.0


def constant(problem: Any, text: str) -> float:
    """Pays the same for everything."""
    return 1.0


def slow(problem: Any, text: str) -> float:
    """Takes its time."""
    time.sleep(1.2)
    return 0.0


class LikesLength:
    """A grader that gives one score, without parts, which grows with the length."""

    def __init__(self, problems: Mapping[str, Sequence[Problem]]) -> None:
        self._problems = problems

    def problems(self, split: str) -> Sequence[Problem]:
        return self._problems[split]

    async def grade(self, problem: Problem, text: str) -> Verdict:
        right = is_correct(text, problem.reference)
        return Verdict(Outcome.ACCEPTED if right else Outcome.WRONG, len(text) / 100)
