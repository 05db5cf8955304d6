"""The problems of a task, by split."""

from collections.abc import Iterable, Mapping, Sequence

from dojang.core.errors import ConfigError, DataError
from dojang.protocols import ChecksRewards, Task
from dojang.tasks.reward_settings import unknown_parts
from dojang.types import Problem

__all__ = ["check_parts", "check_rewards", "problems_of"]


def problems_of(problems: Mapping[str, Sequence[Problem]], split: str) -> Sequence[Problem]:
    """DataError if there is no such split."""
    if split not in problems:
        there_is = ", ".join(map(repr, problems)) or "none at all"
        raise DataError(f"the data has no split {split!r}; there is {there_is}")
    return problems[split]


async def check_rewards(task: Task, problems: Mapping[str, Sequence[Problem]]) -> None:
    """Tries a task's reward functions on a real problem; a task of the user's own may have none."""
    first = next((problem for split in problems.values() for problem in split), None)
    if isinstance(task, ChecksRewards) and first is not None:
        await task.check_rewards(first)


async def check_parts(task: Task, problems: Mapping[str, Sequence[Problem]], names: Iterable[str]) -> None:
    """ConfigError if the reward of a task of the user's own lacks one of these parts, as an empty answer shows."""
    first = next((problem for split in problems.values() for problem in split), None)
    wanted = {*names} - {"overlong"}
    if not wanted or first is None:
        return
    verdict = await task.grade(first, "")
    known = verdict.terms.keys() or verdict.parts.keys()
    if verdict.reward is not None and (unknown := wanted - known):
        raise ConfigError(f"{unknown_parts(unknown, known)} (those of an empty answer to {first.id})")
