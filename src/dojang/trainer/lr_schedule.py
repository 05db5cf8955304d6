"""Learning-rate schedule: a function of the optimizer step, so checkpoints need no scheduler state."""

import math
from typing import Literal

__all__ = ["Schedule", "learning_rate", "warmup_steps"]

Schedule = Literal["constant", "linear", "cosine"]


def learning_rate(
    step: int, *, peak: float, warmup: int, total: int, schedule: Schedule, min_ratio: float = 0.0
) -> float:
    """Learning rate of optimizer step `step`, counted from 0, of `total`. Decay reaches min_ratio * peak at step
    `total`, one after the last, so no step has a rate of zero."""
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    if schedule == "constant":
        return peak
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    left = 1 - progress if schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return peak * (min_ratio + (1 - min_ratio) * left)


def warmup_steps(total: int, *, steps: int, ratio: float) -> int:
    """Warm-up in optimizer steps: `steps`, or a fraction `ratio` of `total`, rounded up."""
    return steps or math.ceil(ratio * total - 1e-9)
