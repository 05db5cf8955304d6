"""Checks of a task before a run."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from dojang.core.errors import ConfigError
from dojang.tasks.splits import TRIED, check_custom, check_gradable
from dojang.types import Message, Outcome, Problem, Verdict

PROBLEMS: Mapping[str, Sequence[Problem]] = {"train": [Problem("p/1", "p", (Message("user", "1 + 1?"),), "2")]}


def task(grade: Any, problems: Any = PROBLEMS.get) -> Any:
    return type("Mine", (), {"problems": staticmethod(problems), "grade": staticmethod(grade)})()


async def as_float(problem: Problem, text: str) -> float:
    return 0.5


async def as_none(problem: Problem, text: str) -> None:
    return None


async def good(problem: Problem, text: str) -> Verdict:
    return Verdict(Outcome.WRONG, 0.0)


async def raises(problem: Problem, text: str) -> Verdict:
    raise ValueError("an empty answer")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (task(as_float), "Mine.grade returned 0.5; make it an async method that returns a dojang.types.Verdict"),
        (task(as_none), "Mine.grade returned None"),
        (task(lambda problem, text: Verdict(Outcome.WRONG, 0.0)), "make it an async method"),
        (object(), "object has no method problems and grade"),
        (task(good, problems=lambda split: {}[split]), r"problems raised KeyError: 'train' \(.*test_splits.py, line "),
    ],
)
def test_a_custom_task_that_cannot_grade_is_refused(found: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=f"task.make_with='mine:T': .*{words}"):
        asyncio.run(check_custom(found, PROBLEMS, "mine:T"))


def test_a_custom_task_that_can_grade_is_accepted() -> None:
    asyncio.run(check_custom(task(good), PROBLEMS, "mine:T"))
    asyncio.run(check_custom(task(raises), PROBLEMS, "mine:T"))  # perhaps only on empty answers


def test_slow_rewards_are_tried_all_at_once() -> None:
    problems = {"train": [Problem(f"p/{at}", "p", (Message("user", "1 + 1?"),), "2") for at in range(TRIED)]}

    async def check() -> None:
        all_started = asyncio.Barrier(TRIED)

        async def waits(problem: Problem, text: str) -> Verdict:
            await all_started.wait()
            return Verdict(Outcome.WRONG, 0.0)

        await asyncio.wait_for(check_gradable(task(waits), problems, "exact_match", 0.0), 30)

    asyncio.run(check())
