"""The union of environments: their names are choices of `workflow.name`."""

from typing import TypeAlias

from dojang.environments.custom import CustomEnvironmentConfig

__all__ = ["EnvironmentConfig"]

EnvironmentConfig: TypeAlias = CustomEnvironmentConfig
