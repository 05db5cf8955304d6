"""Grades completions, with retries after judge errors.

A JUDGE_ERROR says nothing about the completion, so grading is retried. Samples that still have no verdict are excluded
from training.
"""

import asyncio
import reprlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

from dojang.core.user_code import describe_exception
from dojang.programs import Judgement
from dojang.protocols import Task
from dojang.types import Group, Outcome, Problem, Sample, Verdict

__all__ = ["GRADING_ATTEMPTS", "grade_all", "grade_with_retries", "judge_with_retries", "make_group"]

GRADING_ATTEMPTS = 3
"""Maximum number of times a completion is graded."""

T = TypeVar("T", Verdict, Judgement)


async def grade_all(task: Task, problem: Problem, texts: Iterable[str]) -> Mapping[str, Verdict]:
    """Returns the verdict of each distinct completion. Identical completions are graded once, so they always get the
    same reward."""
    once = list(dict.fromkeys(texts))
    verdicts = await asyncio.gather(*(grade_with_retries(task, problem, text) for text in once))
    return dict(zip(once, verdicts, strict=True))


async def grade_with_retries(task: Task, problem: Problem, text: str) -> Verdict:
    def failed(why: str) -> Verdict:
        return Verdict(Outcome.JUDGE_ERROR, None, detail=f"{problem.id}: {why}")

    return await judge_with_retries(partial(_grade, task, problem, text), failed)


async def _grade(task: Task, problem: Problem, text: str) -> Verdict:
    verdict: object = await task.grade(problem, text)
    if not isinstance(verdict, Verdict):  # possible with a custom task
        raise TypeError(f"{type(task).__name__}.grade returned {reprlib.repr(verdict)}, not a dojang.types.Verdict")
    return verdict


async def judge_with_retries(judge: Callable[[], Awaitable[T]], failed: Callable[[str], T]) -> T:
    """Calls the judge, and again after a judge error; `failed` converts an exception to a verdict."""
    for _ in range(GRADING_ATTEMPTS):
        try:
            found = await judge()
        except Exception as error:  # a task should not raise, but a custom one may
            found = failed(describe_exception(error))
        if found.outcome is not Outcome.JUDGE_ERROR:
            break
    return found


def make_group(problem: Problem, prompt_index: int, samples: Iterable[Sample]) -> Group:
    """Builds the group, with samples that could not be judged in `unjudged`."""
    judged: list[Sample] = []
    unjudged: list[Sample] = []
    for sample in samples:
        (unjudged if sample.verdict.outcome is Outcome.JUDGE_ERROR else judged).append(sample)
    return Group(problem, prompt_index, tuple(judged), tuple(unjudged))
