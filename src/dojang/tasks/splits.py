"""Checks of a task and its rewards on some problems, before a run."""

import asyncio
import inspect
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from dojang.core.errors import ConfigError, DataError
from dojang.core.user_code import describe_exception
from dojang.protocols import Task
from dojang.tasks.reward_settings import unknown_parts
from dojang.tasks.reward_signatures import sample_completions
from dojang.types import Outcome, Problem, Verdict

__all__ = ["check_custom", "check_gradable", "check_parts", "check_rewards"]


@runtime_checkable
class ChecksRewards(Protocol):
    """A Task whose reward functions can be checked before a run."""

    async def check_rewards(self, problem: Problem) -> None:
        """Call the reward functions on example completions of a problem; ConfigError if one fails."""


async def check_rewards(task: Task, problems: Mapping[str, Sequence[Problem]]) -> None:
    """Tries a task's reward functions on a real problem; a custom task may have none."""
    first = next((problem for split in problems.values() for problem in split), None)
    if isinstance(task, ChecksRewards) and first is not None:
        await task.check_rewards(first)


async def check_custom(task: Task, problems: Mapping[str, Sequence[Problem]], spec: str) -> None:
    """Raises ConfigError if a custom task lacks a method, or if its grade of an empty answer is no Verdict. A grade
    that raises is left to the run: it may do so on empty answers only."""
    if lacking := [name for name in ("problems", "grade") if not callable(getattr(task, name, None))]:
        raise ConfigError(
            f"task.make_with={spec!r}: {type(task).__name__} has no method {' and '.join(lacking)}; "
            "dojang.protocols.Task describes them"
        )
    first = next((problem for split in problems.values() for problem in split), None)
    if first is None:
        return
    try:
        for split in problems:
            task.problems(split)
    except Exception as error:
        raise ConfigError(f"task.make_with={spec!r}: its method problems raised {describe_exception(error)}") from error
    try:
        found: object = task.grade(first, "")
        is_async = inspect.isawaitable(found)
        verdict = await found if inspect.isawaitable(found) else found
    except Exception:
        return
    if not is_async or not isinstance(verdict, Verdict):
        raise ConfigError(
            f"task.make_with={spec!r}: {type(task).__name__}.grade returned {reprlib.repr(verdict)}; make it an async "
            "method that returns a dojang.types.Verdict, such as Verdict(Outcome.ACCEPTED, reward=1.0)"
        )


async def check_parts(task: Task, problems: Mapping[str, Sequence[Problem]], names: Iterable[str]) -> None:
    """Raises ConfigError if the reward of a custom task lacks one of these parts, found by grading an empty answer."""
    first = next((problem for split in problems.values() for problem in split), None)
    wanted = {*names} - {"overlong"}
    if not wanted or first is None:
        return
    verdict = await task.grade(first, "")
    known = verdict.terms.keys() or verdict.parts.keys()
    if verdict.reward is not None and (unknown := wanted - known):
        raise ConfigError(f"{unknown_parts(unknown, known)} (those of an empty answer to {first.id})")


TRIED, TRIED_USER_CODE = 16, 3
"""Number of problems of a split that `check_gradable` grades; a custom task may be slow or cost money."""


async def check_gradable(
    task: Task,
    problems: Mapping[str, Sequence[Problem]],
    name: str,
    max_judge_errors: float,
    *,
    user_code: bool = False,
) -> None:
    """Raises DataError if more than `max_judge_errors` of the problems cannot be graded, such as text answers under a
    numeric task. Grades a sample completion of some problems of each split. `name` is task.name."""
    most = TRIED_USER_CODE if user_code else TRIED
    for split, every in problems.items():
        tried = every[:: max(1, len(every) // most)][:most]
        reasons = [why for why in await asyncio.gather(*(_ungradable(task, problem) for problem in tried)) if why]
        if len(reasons) > max_judge_errors * len(tried):
            remedy = (
                "correct the rows or the rewards; for answers of another kind set task.name to exact_match, maths, "
            )
            raise DataError(
                f"{len(reasons)} of {len(tried)} problems tried of the {split} split cannot be graded by "
                f"task.name={name}, such as {reasons[0]}; "
                + ("correct the task" if user_code else f"{remedy}keywords or custom")
            )


async def _ungradable(task: Task, problem: Problem) -> str:
    """Reason why a sample completion of a problem gets no verdict; empty if it gets one."""
    try:
        verdict = await task.grade(problem, sample_completions(problem)[0])
    except Exception as error:  # a custom task may raise anything
        return f"{problem.id}: grade raised {describe_exception(error)}"
    return verdict.detail if verdict.outcome is Outcome.JUDGE_ERROR else ""
