"""Checkpoint ranking by any metric of metrics.jsonl.

A checkpoint holds the metrics of its step, so the ranking is read from disk: a crash loses nothing, and a resumed
run may rank by another metric.
"""

import difflib
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, NamedTuple

from dojang.core.errors import ConfigError
from dojang.core.run_dir import ACCURACY, EVALUATION, REWARD, SOURCE_ACCURACY, SOURCE_REWARD, RunDir
from dojang.loop.run_state import State, load_figures
from dojang.types import Metrics, Outcome

__all__ = ["CheckpointRanking", "check_source"]

_SOMETIMES = {f"judge/outcome/{outcome}" for outcome in Outcome}
"""Metrics that only some steps have."""


class Rank(NamedTuple):
    """Sort key of a checkpoint, best first; a field is negated where higher is better."""

    metric: float
    reward: float
    latest: int


def check_source(metric: str, names: Collection[str]) -> None:
    """Raises ConfigError if checkpoint.metric names a data source or benchmark that the run does not evaluate on."""
    kind = next((each for each in (SOURCE_ACCURACY, SOURCE_REWARD) if metric.startswith(each)), None)
    if kind is not None and metric.removeprefix(kind) not in names:
        raise ConfigError(
            f"checkpoint.metric={metric}: the run does not evaluate on {metric.removeprefix(kind)!r}, but on "
            f"{', '.join(sorted(names))}; use {kind}{min(names)}, or add it to eval.benchmarks"
        )


@dataclass(frozen=True, slots=True)
class CheckpointRanking:
    """Ranks checkpoints by `metric` and keeps the `count` best.

    A checkpoint whose step lacks the metric, or has NaN, is not ranked. Ties go to the higher held-out reward, then to
    the later step, so a run that solves nothing still ends with the model it trained.
    """

    metric: str = ACCURACY
    mode: Literal["max", "min"] = "max"
    count: int = 1

    def best_steps(self, directory: RunDir) -> list[int]:
        """Steps of the best checkpoints on disk, best first."""
        return [-rank.latest for rank in self._ranks(directory)[: self.count]]

    def is_among_best(self, state: State, directory: RunDir) -> bool:
        """Whether an evaluation ranks this state among the best, so that it must be saved now.

        Training metrics never trigger a save: they come with every step, and a rising reward would save each. In a tie
        the later state is saved and the earlier checkpoint is deleted: at most one checkpoint per evaluation.
        """
        rank = self._rank(state.step, state.figures)
        if rank is None or not self._of_evaluation:
            return False
        return sum(other < rank for other in self._ranks(directory)) < self.count

    def check(self, figures: Metrics, directory: RunDir) -> None:
        """Raises ConfigError if the run does not report the metric. `figures` are all metrics of an evaluation, or of a
        step with an update, just recorded."""
        of_evaluation = any(name.startswith(EVALUATION) for name in figures)
        if self.metric in figures or self.metric in _SOMETIMES or of_evaluation != self._of_evaluation:
            return
        names = sorted(directory.figures() | figures.keys())
        if self.metric in names:  # another step has it
            return
        near = difflib.get_close_matches(self.metric, names, n=1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise ConfigError(
            f"checkpoint.metric={self.metric} is no metric of this run, so it cannot rank checkpoints; resume with "
            f"another. {hint}This run reports: {', '.join(names)}"
        )

    @property
    def _of_evaluation(self) -> bool:
        return self.metric.startswith(EVALUATION)

    @property
    def _reward(self) -> str:
        """Held-out reward that breaks ties: of the same data source if the metric belongs to one."""
        source = self.metric.removeprefix(SOURCE_ACCURACY)
        return REWARD if source == self.metric else f"{SOURCE_REWARD}{source}"

    def _ranks(self, directory: RunDir) -> list[Rank]:
        ranks = (self._rank(step, load_figures(path)) for step, path in directory.saved().items())
        return sorted(rank for rank in ranks if rank is not None)

    def _rank(self, step: int, figures: Metrics) -> Rank | None:
        """Returns the sort key (lower is better), or None without the metric."""
        value, reward = (figures.get(name, math.nan) for name in (self.metric, self._reward))
        if not math.isfinite(value):
            return None
        return Rank(-value if self.mode == "max" else value, -reward if math.isfinite(reward) else math.inf, -step)
