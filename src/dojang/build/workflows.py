"""Builds the workflows of a run, for training and for evaluation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dojang.build.local import Learner
from dojang.build.sampling import RETRY_STREAM, TESTER_STREAM, eval_sampling, train_sampling
from dojang.config.run_config import RunConfig
from dojang.protocols import RolloutEngine, Task, Trainer, Workflow
from dojang.tasks.code import CodeTask
from dojang.workflows.chat_renderer import ChatRenderer
from dojang.workflows.coder_tester import CoderTester, CoderTesterConfig, Speaker
from dojang.workflows.single_turn import SingleTurn

if TYPE_CHECKING:
    from dojang.build.ray import SpreadLearner

__all__ = ["Player", "make_eval_workflow", "make_workflow"]


@dataclass(frozen=True, slots=True)
class Player:
    """One model of a run."""

    config: RunConfig
    renderer: ChatRenderer
    learner: "Learner | SpreadLearner"
    engine: RolloutEngine
    trainer: Trainer


def make_workflow(config: RunConfig, task: Task, players: Mapping[str, Player]) -> Workflow:
    """Builds the workflow that training samples come from."""
    sampling = train_sampling(config, config.seed, stop=config.data.stop)
    if not isinstance(config.workflow, CoderTesterConfig):
        (policy,) = players.values()
        return SingleTurn(policy.engine, task, policy.renderer, samples=config.rollout.group_size, sampling=sampling)
    assert isinstance(task, CodeTask), "RunConfig has refused others"
    coder, tester = players["coder"], players["tester"]
    again = train_sampling(config, config.seed + RETRY_STREAM, stop=config.data.stop)
    return CoderTester(
        config.workflow,
        task,
        coder=Speaker(coder.engine, coder.renderer, sampling),
        again=Speaker(coder.engine, coder.renderer, again),
        tester=Speaker(tester.engine, tester.renderer, train_sampling(tester.config, config.seed + TESTER_STREAM)),
        samples=config.rollout.group_size,
    )


def make_eval_workflow(config: RunConfig, task: Task, player: Player) -> Workflow:
    """Builds the workflow that answers held-out problems."""
    return SingleTurn(player.engine, task, player.renderer, samples=config.eval.samples, sampling=eval_sampling(config))
