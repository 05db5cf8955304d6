"""Which checkpoints are the best, by any figure of metrics.jsonl.

A checkpoint holds the figures of its own step, so what is on disk says which are the best: there is nothing to lose
in a crash, and the metric may be another one when a run is resumed.
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

__all__ = ["Best", "check_source"]

_SOMETIMES = {f"judge/outcome/{outcome}" for outcome in Outcome}
"""Figures that a step may be without, and the next not."""


class Rank(NamedTuple):
    """Sort key of a checkpoint, the best first; each field is negated where more is better."""

    metric: float
    reward: float
    latest: int


def check_source(metric: str, names: Collection[str]) -> None:
    """ConfigError if checkpoint.metric is of a data source or benchmark that the run does not evaluate on."""
    kind = next((each for each in (SOURCE_ACCURACY, SOURCE_REWARD) if metric.startswith(each)), None)
    if kind is not None and metric.removeprefix(kind) not in names:
        raise ConfigError(
            f"checkpoint.metric={metric}: the run does not evaluate on {metric.removeprefix(kind)!r}, but on "
            f"{', '.join(sorted(names))}; use {kind}{min(names)}, or add it to eval.benchmarks"
        )


@dataclass(frozen=True, slots=True)
class Best:
    """Ranks checkpoints by `metric` and keeps the `count` best.

    A checkpoint whose step lacks the metric, or has NaN, is not ranked. Ties go to the higher held-out reward, then to
    the later step, so a run that solves nothing still ends with the model it trained.
    """

    metric: str = ACCURACY
    mode: Literal["max", "min"] = "max"
    count: int = 1

    def kept(self, directory: RunDir) -> list[int]:
        """Steps of the best checkpoints there are, the best first."""
        return [-rank.latest for rank in self._ranks(directory)[: self.count]]

    def admits(self, state: State, directory: RunDir) -> bool:
        """Whether an evaluation found this state to be among the best, so that it must be saved now.

        Figures of training are no reason to: they come with every step, and a reward that rises would save each. A tie
        is saved as the later of the two: at most one checkpoint per evaluation, and the earlier one is deleted for it.
        """
        rank = self._rank(state.step, state.figures)
        if rank is None or not self._of_evaluation:
            return False
        return sum(other < rank for other in self._ranks(directory)) < self.count

    def check(self, figures: Metrics, directory: RunDir) -> None:
        """ConfigError if there is no such figure. `figures` were just recorded, and are all that an evaluation has, or
        a step that learned."""
        of_evaluation = any(name.startswith(EVALUATION) for name in figures)
        if self.metric in figures or self.metric in _SOMETIMES or of_evaluation != self._of_evaluation:
            return
        names = sorted(directory.figures() | figures.keys())
        if self.metric in names:  # it was there in another step
            return
        near = difflib.get_close_matches(self.metric, names, n=1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise ConfigError(
            f"checkpoint.metric={self.metric} is no figure of this run, so it cannot say which checkpoints are "
            f"the best; resume with another. {hint}There are: {', '.join(names)}"
        )

    @property
    def _of_evaluation(self) -> bool:
        return self.metric.startswith(EVALUATION)

    @property
    def _reward(self) -> str:
        """The held-out reward that breaks ties: that of the same data source, where the metric is of one."""
        source = self.metric.removeprefix(SOURCE_ACCURACY)
        return REWARD if source == self.metric else f"{SOURCE_REWARD}{source}"

    def _ranks(self, directory: RunDir) -> list[Rank]:
        ranks = (self._rank(step, load_figures(path)) for step, path in directory.saved().items())
        return sorted(rank for rank in ranks if rank is not None)

    def _rank(self, step: int, figures: Metrics) -> Rank | None:
        """Less is better. None if the figure is not known."""
        value, reward = (figures.get(name, math.nan) for name in (self.metric, self._reward))
        if not math.isfinite(value):
            return None
        return Rank(-value if self.mode == "max" else value, -reward if math.isfinite(reward) else math.inf, -step)
