"""Base class of `workflow` sections of environments."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, ClassVar

from pydantic import Field

from dojang.core.errors import ConfigError
from dojang.environments.base import Environment
from dojang.environments.calls import EnvironmentFailed, call_with_limit
from dojang.environments.episode_start import start_episode
from dojang.environments.multi_turn import EpisodeLimits, MultiTurn
from dojang.loop.advantages import Credit
from dojang.protocols import Renderer, Task, Workflow
from dojang.types import Problem, plain_prompt
from dojang.workflows.section import RolloutPolicy, WorkflowSection

__all__ = ["EnvironmentSection"]

_TRIED = 3
"""Problems of which a dry run tries to start an episode, until one starts."""


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

    async def check_start(self, task: Task, problems: Sequence[Problem], renderer: Renderer) -> None:
        """Raises ConfigError if the environment cannot be made and reset for any of the first problems, a tool has no
        schema, or the first messages do not fit the context. A run tolerates problems that fail."""

        async def close(environment: Environment) -> None:
            with suppress(EnvironmentFailed):
                await call_with_limit(environment.close, timeout_s=self.timeout_s)

        failure = ""
        for problem in problems[:_TRIED]:
            try:
                started = await start_episode(
                    self.environment, task, problem, renderer, timeout_s=self.timeout_s, close=close
                )
            except EnvironmentFailed as error:
                failure = failure or f"the environment cannot start an episode of {problem.id}: {error}"
                if isinstance(error.__cause__, TimeoutError):
                    break  # another problem would take as long
            else:
                await close(started.environment)
                if self.max_turns > 1 and plain_prompt(started.messages) is not None:
                    raise ConfigError(
                        f"the prompt of {problem.id} is plain text, which cannot be followed by other turns; set "
                        "data.style=chat, or workflow.max_turns=1"
                    )
                return
        if failure:
            raise ConfigError(failure)
