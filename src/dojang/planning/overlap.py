"""Gain of sampling the next batch while the trainer works (loop.mode=overlap or stream), before a run."""

__all__ = ["bottleneck", "overlap_gain"]


def overlap_gain(rollout: float, update: float, rest: float = 0.0) -> float:
    """Largest speed-up over taking turns: a step cannot be shorter than its longer stage. `rest` is what else a step
    takes, such as publishing weights. Reached only if the stages share no processors."""
    longest = max(rollout, update)
    return (rollout + update + rest) / longest if longest > 0 else 1.0


def bottleneck(rollout: float, update: float) -> str:
    """Stage that limits a step."""
    return "rollout" if rollout >= update else "update"
