"""Custom task: grading by a user's class."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from dojang.core.in_process import ObjectName
from dojang.core.section import make_object
from dojang.protocols import Judge, Task
from dojang.tasks.section import TaskSection
from dojang.tasks.splits import check_custom
from dojang.types import Problem

__all__ = ["CustomTaskConfig"]


class CustomTaskConfig(TaskSection):
    """Custom task."""

    grades_on_nodes: ClassVar[bool] = True
    grades_with_problems: ClassVar[bool] = True
    user_code: ClassVar[bool] = True
    name: Literal["custom"] = "custom"
    make_with: ObjectName
    """package.module:Class with the methods of Task; called with the problems by split and the options."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the class."""

    def make(self, problems: Mapping[str, Sequence[Problem]], judge: Judge | None = None) -> Task:
        task: Task = make_object(self.make_with, "task.make_with", problems, **self.options)
        return task

    async def check_made(self, task: Task, problems: Mapping[str, Sequence[Problem]]) -> None:
        await check_custom(task, problems, self.make_with)
