"""The union of environments: their names are choices of `workflow.name`."""

from typing import TypeAlias

from dojang.environments.agent import AgentConfig
from dojang.environments.calculator import CalculatorConfig
from dojang.environments.custom import CustomEnvironmentConfig
from dojang.environments.frozen_lake import FrozenLakeConfig
from dojang.environments.openenv import OpenEnvConfig
from dojang.environments.python_tool import PythonToolConfig
from dojang.environments.repair import RepairConfig
from dojang.environments.retry import RetryConfig
from dojang.environments.search import SearchConfig
from dojang.environments.skyrl_gym import SkyRlGymConfig
from dojang.environments.terminal import TerminalConfig
from dojang.environments.textarena import TextArenaConfig
from dojang.environments.verifiers import VerifiersConfig

__all__ = ["EnvironmentConfig"]

EnvironmentConfig: TypeAlias = (
    AgentConfig
    | CalculatorConfig
    | FrozenLakeConfig
    | OpenEnvConfig
    | PythonToolConfig
    | RepairConfig
    | RetryConfig
    | SearchConfig
    | SkyRlGymConfig
    | TerminalConfig
    | TextArenaConfig
    | VerifiersConfig
    | CustomEnvironmentConfig
)
