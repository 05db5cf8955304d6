"""FrozenLake: walk over the ice to the goal without falling into a hole, one move per turn."""

import re
from collections.abc import Sequence
from typing import Literal

from pydantic import Field, model_validator

from dojang.core.errors import ConfigError
from dojang.environments.base import Environment, Messages, Reply, Step, StepResult
from dojang.environments.lake_maps import MOVES, make_map
from dojang.environments.section import EnvironmentSection
from dojang.protocols import Task
from dojang.types import Problem

__all__ = ["RULES", "FrozenLake", "FrozenLakeConfig"]

RULES = "You are P on a frozen lake. Walk to G. H is a hole. Reply with up, down, left or right.\n"
_MOVE = re.compile(r"\b(up|down|left|right)\b")


class FrozenLakeConfig(EnvironmentSection):
    """FrozenLake: walk to the goal around holes, one move per turn; needs data.name=episodes."""

    name: Literal["frozen_lake"] = "frozen_lake"
    size: int = Field(default=4, ge=2, le=16)
    """Number of rows and columns."""
    holes: int = Field(default=3, ge=0)
    """Number of holes."""
    distance: int = Field(default=6, ge=1)
    """Largest number of moves from the start to the goal."""

    @model_validator(mode="after")
    def _has_room(self) -> "FrozenLakeConfig":
        if self.holes > self.size**2 // 2:
            raise ValueError(f"holes={self.holes} leave too little ice on a lake of {self.size} x {self.size}")
        return self

    def check_problems(self, task: Task, problems: Sequence[Problem]) -> None:
        """Raises ConfigError for data without seeds."""
        if other := [problem.id for problem in problems if not str(problem.reference).isdecimal()]:
            raise ConfigError(
                f"workflow.name=frozen_lake takes seeds of maps as problems, but {other[0]} is none; set "
                "data.name=episodes"
            )

    def environment(self) -> Environment:
        return FrozenLake(self.size, self.holes, self.distance)


class FrozenLake(Environment):
    """One walk over a lake."""

    def __init__(self, size: int = 4, holes: int = 3, distance: int = 6) -> None:
        self._settings = {"size": size, "holes": holes, "distance": distance}

    def reset(self, problem: Problem) -> Messages:
        seed, held_out = int(str(problem.reference)), bool(problem.columns.get("held_out"))
        self._lake = make_map(seed, **self._settings, held_out=held_out)
        self._place = self._lake.start
        return RULES + self._lake.text(self._place)

    def step(self, reply: Reply) -> StepResult:
        moves = _MOVE.findall(reply.text.lower())
        if not moves:
            return f"Reply with {', '.join(MOVES)}.\n{self._lake.text(self._place)}"
        self._place = self._lake.move(self._place, moves[-1])
        if self._place == self._lake.goal:
            return Step(reward=1.0, done=True, detail="reached the goal")
        if self._place in self._lake.holes:
            return Step(reward=0.0, done=True, detail="fell into a hole")
        return self._lake.text(self._place)
