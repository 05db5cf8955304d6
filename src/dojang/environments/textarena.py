"""Games of TextArena, in child processes with another interpreter (remote_process.py)."""

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

__all__ = ["TextArenaConfig"]

_ADAPTER = str(Path(__file__).parent / "textarena_games.py")
_CHECK = """
import sys, textarena
from textarena.envs.registration import ENV_REGISTRY
known = sorted(name[:-4] for name in ENV_REGISTRY if name.endswith("-raw"))
print("" if sys.argv[1] in known else "known: " + " ".join(known))
"""


class TextArenaConfig(EnvironmentSection):
    """Games of TextArena for one player."""

    name: Literal["textarena"] = "textarena"
    game: str = "FrozenLake-v0"
    """Name of a game for one player, such as FrozenLake-v0, TowerOfHanoi-v0, Sudoku-v0-easy, Mastermind-v0 or
    Minesweeper-v0-small, which need no download."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the game, by TextArena's names: {size: 5, num_holes: 4}."""
    max_turns: int = Field(default=20, ge=1, le=10_000)
    """Largest number of moves in an episode."""
    python: str = ""
    """Path to an interpreter with textarena installed, such as .venv-games/bin/python. Empty: dojang's interpreter."""
    processes: int = Field(default=2, ge=1, le=256)
    """Number of processes that play; each serves many episodes."""

    def environment(self) -> Environment:
        pool = process_pool(self.python or sys.executable, _ADAPTER, self.processes)
        return RemoteEnvironment(pool, {"game": self.game, "settings": self.settings}, 0.9 * self.timeout_s)

    def check_problems(self, task: Task, problems: Sequence[Problem]) -> None:
        """Raises ConfigError if the game cannot be played, or the problems have no seeds."""
        if not all(isinstance(each.columns.get("seed"), int) for each in problems):
            raise ConfigError("workflow.name=textarena makes its own instances; set data.name=episodes")
        check_package(self.python or sys.executable, _CHECK, "textarena==0.7.4", ("workflow.game", self.game))
