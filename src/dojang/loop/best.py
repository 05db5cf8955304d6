"""Which checkpoints are the best, by any figure of metrics.jsonl.

A checkpoint holds the figures of its own step, so what is on disk says which are the best: there is nothing to lose
in a crash, and the metric may be another one when a run is resumed.
"""

import difflib
import math
from dataclasses import dataclass
from typing import Literal

from dojang.errors import ConfigError
from dojang.loop.state import State, load_figures
from dojang.rundir import EVALUATION, SCORE, RunDir
from dojang.types import Metrics, Outcome

__all__ = ["Best"]

_SOMETIMES = {f"judge/outcome/{outcome}" for outcome in Outcome}
"""Figures that a step may be without, and the next not."""


@dataclass(frozen=True, slots=True)
class Best:
    """The `count` best by `metric`. A checkpoint whose step has no such figure, or NaN, is not among them."""

    metric: str = SCORE
    mode: Literal["max", "min"] = "max"
    count: int = 1

    def kept(self, directory: RunDir) -> list[int]:
        """Steps of the best checkpoints there are, the best first."""
        return [step for _, step in self._ranks(directory)[: self.count]]

    def admits(self, state: State, directory: RunDir) -> bool:
        """Whether an evaluation found this state to be among the best, so that it must be saved now.

        Figures of training are no reason to: they come with every step, and a reward that rises would save each.
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

    def _ranks(self, directory: RunDir) -> list[tuple[float, int]]:
        ranks = (self._rank(step, load_figures(path)) for step, path in directory.saved().items())
        return sorted(rank for rank in ranks if rank is not None)

    def _rank(self, step: int, figures: Metrics) -> tuple[float, int] | None:
        """Less is better; of equals the earliest is the best. None if the figure is not known."""
        value = figures.get(self.metric, math.nan)
        if not math.isfinite(value):
            return None
        return (-value if self.mode == "max" else value), step
