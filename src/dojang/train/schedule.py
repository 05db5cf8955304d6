"""The learning rate as a function of the optimiser step: nothing to save, nothing to lose."""

import math
from typing import Literal

__all__ = ["learning_rate"]


def learning_rate(step: int, *, peak: float, warmup: int, total: int, schedule: Literal["constant", "cosine"]) -> float:
    """The rate for optimiser step `step`, counted from 0, of `total`."""
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    if schedule == "constant":
        return peak
    progress = min(1.0, (step - warmup) / max(1, total - 1 - warmup))
    return peak * (0.1 + 0.9 * (1 + math.cos(math.pi * progress)) / 2)
