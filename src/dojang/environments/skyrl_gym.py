"""Environments of SkyRL-Gym, in processes with another interpreter (remote_process.py)."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from dojang.core.errors import ConfigError
from dojang.environments.base import Environment
from dojang.environments.remote_process import RemoteEnvironment, check_package, process_pool
from dojang.environments.section import EnvironmentSection
from dojang.protocols import Task
from dojang.types import Problem

__all__ = ["SkyRlGymConfig"]

_ADAPTER = str(Path(__file__).parent / "skyrl_gym_tasks.py")
_CHECK = """
import sys, skyrl_gym
from skyrl_gym.envs.registration import registry
print("" if sys.argv[1] in registry else "known: " + " ".join(sorted(registry)))
"""


class SkyRlGymConfig(EnvironmentSection):
    """Environments of SkyRL-Gym."""

    name: Literal["skyrl_gym"] = "skyrl_gym"
    env: str = "gsm8k_multi_turn"
    """Name of an environment of SkyRL-Gym, such as gsm8k_multi_turn, aime or text2sql. It gives all rewards."""
    env_config: dict[str, Any] = Field(default_factory=dict)
    """Configuration of the environment, by SkyRL-Gym's names."""
    extras: dict[str, Any] = Field(default_factory=dict)
    """Further extras of the environment, besides max_turns and reward_spec.ground_truth, the problem's reference."""
    max_turns: int = Field(default=5, ge=1, le=10_000)
    """Largest number of replies in an episode; the environment is told as well."""
    python: str = ""
    """Path to an interpreter with skyrl-gym installed. Empty: dojang's interpreter."""
    processes: int = Field(default=2, ge=1, le=256)
    """Number of processes that play; each serves many episodes."""

    def environment(self) -> Environment:
        pool = process_pool(self.python or sys.executable, _ADAPTER, self.processes)
        options = {
            "env": self.env,
            "env_config": self.env_config,
            "extras": self.extras,
            "max_turns": self.max_turns,
        }
        return RemoteEnvironment(pool, options, 0.9 * self.timeout_s)

    def check_problems(self, task: Task, problems: Sequence[Problem]) -> None:
        """Raises ConfigError if the environment does not exist, or cannot be sent a reference."""
        for problem in problems:
            if not isinstance(problem.reference, str | int | float | dict | list):
                raise ConfigError(
                    f"workflow.name=skyrl_gym: the reference of {problem.id} is a {type(problem.reference).__name__}; "
                    "use data whose references are text, numbers, or objects of JSON"
                )
        check_package(self.python or sys.executable, _CHECK, "skyrl-gym==0.4.0", ("workflow.env", self.env))
