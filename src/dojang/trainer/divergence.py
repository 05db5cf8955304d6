"""Stops training that diverges, before it changes a weight."""

import math

from dojang.core.errors import TrainingError
from dojang.types import Metrics

__all__ = ["LOGP_GAP", "check_finite"]

LOGP_GAP = "actor/logp_gap"
_MAX_LOGP_GAP = 20.0
"""Mean log-prob gap above which the model counts as diverged: probabilities changed by a factor of exp(20)."""


def check_finite(figures: Metrics) -> None:
    """Raises TrainingError if a figure is NaN or infinite, or if the log-prob gap is too large."""
    bad = sorted(name for name, value in figures.items() if not math.isfinite(value))
    if figures.get(LOGP_GAP, 0.0) > _MAX_LOGP_GAP:
        bad.append(f"{LOGP_GAP}, {figures[LOGP_GAP]:.3g},")
    if bad:
        rate = "train.critic.lr" if any(name.startswith("critic/") for name in bad) else "train.lr"
        raise TrainingError(
            f"{', '.join(bad)} became NaN, infinite or too large, so this step was skipped; the last checkpoint is "
            f"untouched. Resume from it with a lower {rate} or train.max_grad_norm, or start again with "
            "model.dtype=float32"
        )
