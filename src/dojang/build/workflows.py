"""Builds the workflows of a run, for training and for evaluation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dojang.build.local import LocalPolicy
from dojang.build.sampling import RETRY_STREAM, TESTER_STREAM, eval_sampling, train_sampling
from dojang.config.run_config import RunConfig
from dojang.protocols import RolloutEngine, Task, Trainer, Workflow
from dojang.tasks.code import CodeTask
from dojang.workflows.chat_renderer import ChatRenderer
from dojang.workflows.coder_tester import CoderTester, CoderTesterConfig, RolloutPolicy
from dojang.workflows.single_turn import SingleTurn

if TYPE_CHECKING:
    from dojang.build.ray import RayPolicy

__all__ = ["RoleParts", "make_eval_workflow", "make_workflow"]


@dataclass(frozen=True, slots=True)
class RoleParts:
    """Parts of one role: configuration, prompt renderer, policy, engine and trainer."""

    config: RunConfig
    renderer: ChatRenderer
    policy: "LocalPolicy | RayPolicy"
    engine: RolloutEngine
    trainer: Trainer


def make_workflow(config: RunConfig, task: Task, parts: Mapping[str, RoleParts]) -> Workflow:
    """Builds the workflow that training samples come from."""
    sampling = train_sampling(config, config.seed, stop=config.data.stop)
    if not isinstance(config.workflow, CoderTesterConfig):
        (part,) = parts.values()
        return SingleTurn(part.engine, task, part.renderer, group_size=config.rollout.group_size, sampling=sampling)
    assert isinstance(task, CodeTask), "RunConfig refuses other tasks"
    coder, tester = parts["coder"], parts["tester"]
    again = train_sampling(config, config.seed + RETRY_STREAM, stop=config.data.stop)
    return CoderTester(
        config.workflow,
        task,
        coder=RolloutPolicy(coder.engine, coder.renderer, sampling),
        retry_policy=RolloutPolicy(coder.engine, coder.renderer, again),
        tester=RolloutPolicy(
            tester.engine, tester.renderer, train_sampling(tester.config, config.seed + TESTER_STREAM)
        ),
        group_size=config.rollout.group_size,
    )


def make_eval_workflow(config: RunConfig, task: Task, part: RoleParts) -> Workflow:
    """Builds the workflow that answers held-out problems."""
    return SingleTurn(part.engine, task, part.renderer, group_size=config.eval.samples, sampling=eval_sampling(config))
