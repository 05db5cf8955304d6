"""Change of a metric over a run, compared with its noise from step to step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

__all__ = ["MIN_STEPS", "Trend", "last_steps", "window"]

MIN_STEPS = 4
"""Steps from which a trend is stated: with fewer, both ends are one noisy step."""
_PART = 4
"""Share of the steps, as a divisor, whose mean is an end of a trend."""
_NOISES = 2.0
"""Standard errors that a change must exceed: about 5% false alarms for one metric, and a rule needs several."""


def window(count: int) -> int:
    """Number of steps at either end of a run of `count` steps."""
    return max(1, min(20, count // _PART))


def last_steps(count: int) -> str:
    """Names the last `count` steps."""
    return "the last step" if count == 1 else f"the last {count} steps"


@dataclass(frozen=True, slots=True)
class Trend:
    """Means of a metric over the first and over the last steps."""

    first: float
    last: float
    noise: float
    """Standard error of the change. Half the mean squared difference of consecutive steps is their variance (von
    Neumann), which a slow trend does not inflate; the change has the variance of two means."""

    @classmethod
    def of(cls, values: Sequence[float]) -> "Trend | None":
        """Returns the trend, or None with too few steps."""
        if len(values) < MIN_STEPS:
            return None
        size = window(len(values))
        gaps = [(after - before) ** 2 for before, after in pairwise(values)]
        return cls(fmean(values[:size]), fmean(values[-size:]), math.sqrt(fmean(gaps) / size))

    @property
    def change(self) -> float:
        return self.last - self.first

    def rose(self, least: float) -> bool:
        """Whether it rose by more than `least` and more than its noise."""
        return self.change > max(least, _NOISES * self.noise)

    def fell(self, least: float) -> bool:
        """Whether it fell by more than `least` and more than its noise."""
        return -self.change > max(least, _NOISES * self.noise)
