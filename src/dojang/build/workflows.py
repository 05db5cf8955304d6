"""Builds the workflows of a run, for training and for evaluation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dojang.build.local import LocalPolicy
from dojang.build.sampling import eval_sampling, train_sampling
from dojang.config.run_config import RunConfig
from dojang.protocols import RolloutEngine, Task, Trainer, Workflow
from dojang.workflows.chat_renderer import ChatRenderer
from dojang.workflows.section import RolloutPolicy

if TYPE_CHECKING:
    from dojang.build.ray import RayPolicy

__all__ = ["RoleParts", "SamplingParts", "make_eval_workflow", "make_workflow"]


@dataclass(frozen=True, slots=True)
class SamplingParts:
    """Parts of one role that sample: configuration, prompt renderer and engine."""

    config: RunConfig
    renderer: ChatRenderer
    engine: RolloutEngine


@dataclass(frozen=True, slots=True)
class RoleParts(SamplingParts):
    """Parts of one role in the trainer's process: also policy and trainer."""

    policy: "LocalPolicy | RayPolicy"
    trainer: Trainer


def make_workflow(config: RunConfig, task: Task, parts: Mapping[str, SamplingParts]) -> Workflow:
    """Builds the workflow that training samples come from."""
    policies = {
        role: RolloutPolicy(part.engine, part.renderer, train_sampling(part.config, config.seed))
        for role, part in parts.items()
    }
    # Conversations that stream cannot be repeated, so their turns need not wait for each other.
    return config.workflow.make(task, policies, config.rollout.group_size, batch_turns=config.loop.mode != "stream")


def make_eval_workflow(config: RunConfig, task: Task, part: RoleParts) -> Workflow:
    """Builds the workflow that answers held-out problems."""
    policy = RolloutPolicy(part.engine, part.renderer, eval_sampling(config))
    return config.workflow.make_eval(task, policy, config.eval.samples)
