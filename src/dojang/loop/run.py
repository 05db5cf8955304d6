"""Run: the objects and settings of the loop, wired by build/assemble.py."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dojang.core.run_dir import RunDir
from dojang.loop.advantages import Credit
from dojang.loop.checkpoint_ranking import CheckpointRanking
from dojang.loop.curriculum import Curriculum
from dojang.loop.endings import AnswerEnd
from dojang.loop.evaluate import Benchmark
from dojang.loop.health_check import HealthCheck
from dojang.loop.parity_check import ParityCheck
from dojang.loop.prompt_sampler import problem_at
from dojang.loop.rollout_workers import RolloutWorkers
from dojang.protocols import Algorithm, RolloutEngine, Tracker, Trainer, Workflow
from dojang.types import Group, Metrics, Problem, Sample

__all__ = ["Distiller", "Run"]


class Distiller(Protocol):
    """Adds a teacher's per-token signal to advantages (on-policy distillation)."""

    async def advantages(self, groups: Sequence[Group]) -> tuple[list[Group], Metrics]:
        """Groups with per-token advantages, and metrics. Drops samples that the teacher could not score."""

    async def close(self) -> None:
        """Close connections to the teacher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The objects and settings of the loop."""

    seed: int
    steps: int
    prompts_per_step: int
    minibatches: int
    eval_every: int
    save_every: int
    problems: Sequence[Problem]
    held_out: Sequence[Problem]
    workflow: Workflow
    eval_workflow: Workflow
    engine: RolloutEngine
    algorithm: Algorithm
    trainer: Trainer
    tracker: Tracker
    health: HealthCheck
    directory: RunDir
    answer_end: AnswerEnd = lambda text: None
    """Position at which the answer in a completion ends, if the task says so."""
    ppo_epochs: int = 1
    """Passes over each batch of rollouts, with `minibatches` optimizer steps each."""
    credit: Credit = "episode"
    """Level at which samples are compared: whole episodes, or turn by turn."""
    mask_truncated: bool = False
    """Mask completions truncated at max_tokens out of the loss."""
    warned: set[str] = field(default_factory=set)
    """Warnings already logged in this run."""
    weights_synced: bool = False
    """Whether the engine already holds the initial weights, so the first weight sync can be skipped."""
    lag: int = 0
    """Largest staleness, in published versions. Above 0, `trainer` must not block the event loop
    (trainer/thread_trainer.py)."""
    workers: Sequence[RolloutWorkers] = ()
    """Rollout workers of a run that streams; empty if whole batches are sampled (batch_producer.py)."""
    worker_timeout_s: float = math.inf
    """Seconds without a sign of life after which the prompts of a rollout worker go to others."""
    stall_s: float = math.inf
    """Seconds without progress after which stacks are written (watchdog.py)."""
    critic: bool = False
    """Whether advantages come from the critic (GAE per token), not from comparing samples."""
    distiller: Distiller | None = None
    """Adds the teacher's signal to token advantages (on-policy distillation)."""
    eval_samples: Sequence[Sample] = ()
    """Held-out completions for the evaluation loss (SFT)."""
    ranking: CheckpointRanking = field(default_factory=CheckpointRanking)
    """Ranks checkpoints; the best are kept."""
    benchmarks: Sequence[Benchmark] = ()
    """Further evaluation sets, recorded only: they do not count in val/accuracy."""
    curriculum: Curriculum = field(default_factory=Curriculum)
    """Skips prompts of problems that gave no signal so far."""
    parity_checks: Sequence[ParityCheck] = ()
    """Log-prob comparisons of engine and trainer, one per model, run before the first step."""

    def problem(self, prompt_index: int) -> Problem:
        """Returns the problem drawn at this index of the run."""
        return problem_at(self.problems, self.seed, prompt_index)
