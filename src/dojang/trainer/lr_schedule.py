"""The learning rate as a function of the optimizer step: nothing to save, nothing to lose."""

import math
from typing import Literal

__all__ = ["Schedule", "learning_rate", "warmup_steps"]

Schedule = Literal["constant", "linear", "cosine"]


def learning_rate(
    step: int, *, peak: float, warmup: int, total: int, schedule: Schedule, min_ratio: float = 0.0
) -> float:
    """The rate for optimizer step `step`, counted from 0, of `total`. Decay reaches min_ratio * peak at step `total`,
    one after the last, so that no step is taken at a rate of zero."""
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    if schedule == "constant":
        return peak
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    left = 1 - progress if schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return peak * (min_ratio + (1 - min_ratio) * left)


def warmup_steps(total: int, *, steps: int, ratio: float) -> int:
    """Warm-up in optimizer steps: as many as are given, or a share of `total`, rounded up."""
    return steps or math.ceil(ratio * total - 1e-9)
