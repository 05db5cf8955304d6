"""Base class of `workflow` sections of environments."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from dojang.environments.base import Environment
from dojang.environments.multi_turn import EpisodeLimits, MultiTurn
from dojang.environments.tools import schemas_of
from dojang.loop.advantages import Credit
from dojang.protocols import Task, Workflow
from dojang.types import Problem
from dojang.workflows.section import RolloutPolicy, WorkflowSection

__all__ = ["EnvironmentSection"]


class EnvironmentSection(WorkflowSection):
    """Settings of an environment: a conversation of several turns."""

    is_environment: ClassVar[bool] = True
    max_turns: int = Field(default=8, ge=1, le=10_000)
    """Largest number of replies in an episode."""
    credit: Credit = "episode"
    """Level at which samples of a group are compared: whole episodes by the sum of their rewards, or turn k with turn k
    of the others by the rewards from there on (AT-GRPO)."""
    timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    """Longest time of a call of the environment; a longer one fails the episode, which is not trained on."""
    lockstep: bool = True
    """Whether all episodes of a batch take their turns together, so that a run can be repeated token by token. false:
    an episode goes on as soon as its environment has answered, which is faster where environments are slow."""

    @property
    def advantage_level(self) -> Credit:
        return self.credit

    @property
    def limits(self) -> EpisodeLimits:
        """Limits of its episodes."""
        return EpisodeLimits(self.max_turns, self.timeout_s)

    def environment(self) -> Environment:
        """Creates the environment of an episode."""
        raise NotImplementedError

    def make(
        self, task: Task, policies: Mapping[str, RolloutPolicy], group_size: int, *, batch_turns: bool = True
    ) -> Workflow:
        (policy,) = policies.values()
        return MultiTurn(
            self.environment,
            task,
            policy,
            self.limits,
            group_size=group_size,
            lockstep=batch_turns and self.lockstep,
        )

    def make_eval(self, task: Task, policy: RolloutPolicy, group_size: int) -> Workflow:
        return self.make(task, {"policy": policy}, group_size)

    def check_problems(self, task: Task, problems: Sequence[Problem]) -> None:
        """Raises ConfigError if the environment cannot be made, or its tools have no schema."""
        schemas_of(self.environment().tools())
