"""Insisting on a verdict.

A verdict of JUDGE_ERROR says nothing about what was judged: the judge is asked again, a few times. What then still has
no verdict never trains.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

from dojang.programs import Judgement
from dojang.protocols import Task
from dojang.types import Group, Outcome, Problem, Sample, Verdict

__all__ = ["GRADING_ATTEMPTS", "grade_all", "graded", "group_of", "insist"]

GRADING_ATTEMPTS = 3

T = TypeVar("T", Verdict, Judgement)


async def grade_all(task: Task, problem: Problem, texts: Iterable[str]) -> Mapping[str, Verdict]:
    """What each answer is worth. What was said more than once is judged once: the same words never get different
    rewards."""
    once = list(dict.fromkeys(texts))
    verdicts = await asyncio.gather(*(graded(task, problem, text) for text in once))
    return dict(zip(once, verdicts, strict=True))


async def graded(task: Task, problem: Problem, text: str) -> Verdict:
    """What an answer is worth."""

    def failed(why: str) -> Verdict:
        return Verdict(Outcome.JUDGE_ERROR, None, detail=f"{problem.id}: {why}")

    return await insist(partial(task.grade, problem, text), failed)


async def insist(judge: Callable[[], Awaitable[T]], failed: Callable[[str], T]) -> T:
    """What the judge says, asked again if it fails; `failed` makes that out of an exception."""
    for _ in range(GRADING_ATTEMPTS):
        try:
            found = await judge()
        except Exception as error:  # a task should not raise, but a user's own may
            found = failed(repr(error))
        if found.outcome is not Outcome.JUDGE_ERROR:
            break
    return found


def group_of(problem: Problem, ordinal: int, samples: Iterable[Sample]) -> Group:
    """The samples, with those that could not be judged set aside."""
    judged: list[Sample] = []
    unjudged: list[Sample] = []
    for sample in samples:
        (unjudged if sample.verdict.outcome is Outcome.JUDGE_ERROR else judged).append(sample)
    return Group(problem, ordinal, tuple(judged), tuple(unjudged))
