"""Task of environments that give all rewards themselves, such as games."""

from collections.abc import Mapping, Sequence
from typing import Literal

from dojang.protocols import Judge, Task
from dojang.tasks.base import SplitTask
from dojang.tasks.section import TaskSection
from dojang.types import Outcome, Problem, Verdict

__all__ = ["EnvironmentTaskConfig"]


class EnvironmentTaskConfig(TaskSection):
    """Rewards of the environment alone."""

    name: Literal["environment"] = "environment"

    def make(self, problems: Mapping[str, Sequence[Problem]], judge: Judge | None = None) -> Task:
        return _EnvironmentTask(problems)


class _EnvironmentTask(SplitTask):
    async def grade(self, problem: Problem, text: str) -> Verdict:
        return Verdict(Outcome.WRONG, 0.0, detail="rewards are given by the environment (task.name=environment)")
