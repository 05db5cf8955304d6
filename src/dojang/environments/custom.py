"""Custom environment: a user's class."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from dojang.core.errors import ConfigError
from dojang.core.in_process import ObjectName
from dojang.core.section import load_object, make_object
from dojang.environments.base import Environment
from dojang.environments.section import EnvironmentSection
from dojang.protocols import Task
from dojang.types import Problem

__all__ = ["CustomEnvironmentConfig"]

_KEY = "workflow.make_with"


class CustomEnvironmentConfig(EnvironmentSection):
    """Custom environment."""

    name: Literal["custom"] = "custom"
    make_with: ObjectName
    """package.module:Class of an environment (dojang.Environment); called with the options for every episode."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the class."""

    def check_problems(self, task: Task, problems: Sequence[Problem]) -> None:
        """Raises ConfigError if there is no such class."""
        load_object(self.make_with, _KEY)

    def environment(self) -> Environment:
        made = make_object(self.make_with, _KEY, **self.options)
        if not isinstance(made, Environment):
            raise ConfigError(
                f"{_KEY}={self.make_with!r} makes a {type(made).__name__}, not a dojang.Environment; subclass "
                "dojang.Environment and override `step`"
            )
        return made
