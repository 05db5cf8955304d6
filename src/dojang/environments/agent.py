"""Settings of agents: programs that use the policy through OpenAI's or Anthropic's API."""

import shutil
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from dojang.core.errors import ConfigError
from dojang.core.in_process import ObjectName
from dojang.core.section import load_object
from dojang.protocols import Task, Workflow
from dojang.types import Problem
from dojang.workflows.section import RolloutPolicy, WorkflowSection

__all__ = ["AgentConfig"]


class AgentConfig(WorkflowSection):
    """Agent: a function or a program, with the policy behind OpenAI's and Anthropic's API."""

    is_environment: ClassVar[bool] = True
    name: Literal["agent"] = "agent"
    make_with: ObjectName | None = None
    """package.module:function, called as function(problem, client, **options) for every sample; plain or async. Returns
    a reward, a text that the task grades, or None if it posted its reward."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the function."""
    command: tuple[str, ...] = ()
    """Program that is run for every sample, instead of make_with, such as [python, agent.py]."""
    columns: tuple[str, ...] = ()
    """Columns of the problem that the program gets, besides its id and messages. Leave out columns with answers."""
    max_turns: int = Field(default=64, ge=1, le=100_000)
    """Largest number of requests of an agent."""
    timeout_s: Annotated[float, Field(gt=0, le=864_000)] = 600.0
    """Longest time of an agent; a longer one fails, and its sample is not trained on."""
    lockstep: bool = True
    """Whether all agents of a batch are answered together, so that a run can be repeated token by token. false: each
    goes on at once, which is faster where agents are slow."""
    max_concurrent: int = Field(default=64, ge=1, le=100_000)
    """Largest number of agents that run at a time."""
    client_sampling: Literal["refuse", "ignore"] = "refuse"
    """Requests with another temperature, top_p, top_k or min_p than the run's: refuse them with status 400, or ignore
    what they ask for and note it with the sample. Evaluations ignore it."""

    @model_validator(mode="after")
    def _one_agent(self) -> Self:
        if bool(self.make_with) == bool(self.command):
            raise ValueError("set one of workflow.make_with and workflow.command: the agent is a function or a program")
        if self.options and self.command:
            raise ValueError("workflow.options are for workflow.make_with; give arguments in workflow.command")
        if self.columns and self.make_with:
            raise ValueError("workflow.columns is for workflow.command; a function gets the whole problem")
        return self

    def make(
        self, task: Task, policies: Mapping[str, RolloutPolicy], group_size: int, *, batch_turns: bool = True
    ) -> Workflow:
        from dojang.environments.agent_workflow import AgentWorkflow, agent_of  # loads a web server

        (policy,) = policies.values()
        return AgentWorkflow(
            self, agent_of(self), task, policy, group_size=group_size, lockstep=batch_turns and self.lockstep
        )

    def make_eval(self, task: Task, policy: RolloutPolicy, group_size: int) -> Workflow:
        ignoring = self.model_copy(update={"client_sampling": "ignore"})  # no trainer depends on it
        return ignoring.make(task, {"policy": policy}, group_size)

    def check_problems(self, task: Task, problems: Sequence[Problem]) -> None:
        """Raises ConfigError if there is no such function or program."""
        if self.make_with is not None:
            load_object(self.make_with, "workflow.make_with")
        elif shutil.which(self.command[0]) is None:
            raise ConfigError(
                f"workflow.command: there is no program {self.command[0]!r}; give its path, or install it"
            )
