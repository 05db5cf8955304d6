"""Environments of verifiers: its tasksets, harnesses and rewards, in a process with another interpreter.

The harness asks the policy as an agent does (agent_workflow.py), so tokens, log-probs and weight versions are recorded
by the policy's server; the process answers with the reward.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from dojang.core.errors import ConfigError
from dojang.data.verifiers import PACKAGE, VerifiersTask, install_hint
from dojang.environments.rollout_process import START_S, trial_process
from dojang.protocols import Task, Workflow
from dojang.types import Problem
from dojang.workflows.section import RolloutPolicy, WorkflowSection

__all__ = ["ADAPTER", "VerifiersConfig"]

ADAPTER = str(Path(__file__).parent / "verifiers_rollouts.py")


class VerifiersConfig(WorkflowSection):
    """Environments of verifiers: tasksets with harnesses, such as chat with tools."""

    is_environment: ClassVar[bool] = True
    name: Literal["verifiers"] = "verifiers"
    env: dict[str, Any] = Field(default_factory=dict)
    """Configuration of the environment, by verifiers' names: {taskset: {id: ...}, agent: {harness: {id: bash}, runtime:
    {type: docker}}}. The taskset is by default that of data.name=verifiers, the harness the chat loop `null` with the
    taskset's tools, the runtime `subprocess`."""
    python: str = ""
    """Path to an interpreter with verifiers and the taskset's package installed. Empty: data.python, or dojang's."""
    task_fields: dict[str, str] = Field(default_factory=dict)
    """Fields of a task, if the problems are not those of data.name=verifiers: name of the field -> `reference`, or a
    column of the data. The prompt is the problem's."""
    max_turns: int = Field(default=16, ge=1, le=100_000)
    """Largest number of replies in a rollout; it is then scored as it is. An agent of `env` may have its own."""
    timeout_s: Annotated[float, Field(gt=0, le=864_000)] = 600.0
    """Longest time of a rollout; a longer one fails, and its sample is not trained on."""
    lockstep: bool = True
    """Whether all rollouts of a batch are answered together, so that a run can be repeated token by token. false: each
    goes on at once, which is faster where environments are slow."""
    max_concurrent: int = Field(default=64, ge=1, le=100_000)
    """Largest number of rollouts that run at a time."""
    client_sampling: Literal["refuse", "ignore"] = "refuse"
    """Requests with another temperature, top_p, top_k or min_p than the run's: refuse them with status 400, or ignore
    what they ask for and note it with the sample. Evaluations ignore it."""

    def make(
        self, task: Task, policies: Mapping[str, RolloutPolicy], group_size: int, *, batch_turns: bool = True
    ) -> Workflow:
        from dojang.environments.agent_workflow import AgentWorkflow  # loads a web server
        from dojang.environments.verifiers_agent import run_episode

        (policy,) = policies.values()
        return AgentWorkflow(
            self, run_episode(self), task, policy, group_size=group_size, lockstep=batch_turns and self.lockstep
        )

    def make_eval(self, task: Task, policy: RolloutPolicy, group_size: int) -> Workflow:
        ignoring = self.model_copy(update={"client_sampling": "ignore"})  # no trainer depends on it
        return ignoring.make(task, {"policy": policy}, group_size)

    def settings_of(self, problem: Problem) -> tuple[str, str]:
        """Returns the interpreter for a problem, and the options of its process, as JSON."""
        own = VerifiersTask.of(problem)
        env = {**self.env, "taskset": {**(own.taskset if own else {}), **(self.env.get("taskset") or {})}}
        python = self.python or (own.python if own else "") or sys.executable
        return python, json.dumps({"env": env, "max_turns": self.max_turns}, sort_keys=True)

    def task_of(self, problem: Problem) -> dict[str, Any]:
        """Returns the data of the task of a problem. Raises ConfigError if a column is missing."""
        if (own := VerifiersTask.of(problem)) is not None:
            return dict(own.data)
        found: dict[str, Any] = {
            "name": problem.id,
            "prompt": [{"role": each.role, "content": each.content} for each in problem.messages],
        }
        for name, column in self.task_fields.items():
            if column != "reference" and column not in problem.columns:
                raise ConfigError(
                    f"workflow.task_fields.{name}={column}: {problem.id} has no such column; it has `reference` and "
                    f"{', '.join(sorted(problem.columns)) or 'no others'}"
                )
            found[name] = problem.reference if column == "reference" else problem.columns[column]
        return found

    def check_problems(self, task: Task, problems: Sequence[Problem]) -> None:
        """Raises ConfigError if the environment cannot be made, or cannot take the first problem."""
        if not problems:
            return
        python, options = self.settings_of(problems[0])
        if not json.loads(options)["env"]["taskset"].get("id"):
            raise ConfigError(
                "workflow.name=verifiers needs a taskset: set data.name=verifiers and data.taskset.id, or "
                "workflow.env.taskset.id"
            )
        failure = "workflow.name=verifiers: the environment cannot be made"
        with trial_process(python, ADAPTER, options, failure, (PACKAGE, install_hint())) as process:
            process.ask("check", timeout_s=START_S, task=self.task_of(problems[0])).result(START_S)
