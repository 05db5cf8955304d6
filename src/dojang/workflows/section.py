"""Base class of the `workflow` section: makes a workflow, and states what its roles are asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from dojang.core.section import Section
from dojang.protocols import Renderer, RolloutEngine, Task, Workflow
from dojang.types import Message, Problem, Sampling, StopLine

__all__ = ["RolloutPolicy", "WorkflowSection"]


@dataclass(frozen=True, slots=True)
class RolloutPolicy:
    """A policy to sample from: engine, prompt renderer and sampling parameters."""

    engine: RolloutEngine
    renderer: Renderer
    sampling: Sampling


class WorkflowSection(Section):
    """Settings of a workflow."""

    own_parts: ClassVar[tuple[str, ...]] = ()
    """Names of the terms of rewards that the workflow gives, besides those of the task."""
    is_environment: ClassVar[bool] = False
    """Whether it is an environment: one model, several turns, its rewards."""

    @property
    def advantage_level(self) -> Literal["episode", "turn"]:
        """Level at which samples of a group are compared."""
        return "episode"

    def make(
        self, task: Task, policies: Mapping[str, RolloutPolicy], group_size: int, *, batch_turns: bool = True
    ) -> Workflow:
        """Creates the workflow with the policy of each role. `batch_turns`: the turns of concurrent conversations wait
        for each other, so that sampling can be repeated (batched_turns.py)."""
        raise NotImplementedError

    def make_eval(self, task: Task, policy: RolloutPolicy, group_size: int) -> Workflow:
        """Creates the workflow of evaluations: one turn, unless the workflow is an environment."""
        from dojang.workflows.single_turn import SingleTurn  # which imports this module

        return SingleTurn(policy.engine, task, policy.renderer, group_size=group_size, sampling=policy.sampling)

    def first_prompt(self, role: str, task: Task, problem: Problem) -> Sequence[Message]:
        """First prompt of a role for a problem."""
        return problem.messages

    def stop_line(self, of_task: StopLine | None) -> StopLine | None:
        """Stop condition of completions; by default that of the task."""
        return of_task

    def check_problems(self, task: Task, problems: Sequence[Problem]) -> None:
        """Raises DataError if the workflow cannot be used with the training problems."""

    async def check_start(self, task: Task, problems: Sequence[Problem], renderer: Renderer) -> None:
        """Raises ConfigError if no episode of the problems can start."""
