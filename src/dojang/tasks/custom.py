"""Grading by the user's own code."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from dojang.core.section import Section, make_object
from dojang.protocols import Task
from dojang.types import Problem

__all__ = ["CustomTaskConfig"]


class CustomTaskConfig(Section):
    """The escape hatch of the task room."""

    name: Literal["custom"] = "custom"
    make_with: str
    """package.module:Class, called with the problems by split and the options; has the methods of Task."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for it."""

    def make(self, problems: Mapping[str, Sequence[Problem]]) -> Task:
        """The user's task."""
        task: Task = make_object(self.make_with, "task.make_with", problems, **self.options)
        return task
