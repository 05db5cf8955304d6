"""Sums of metrics, such as those of several engines or rollout workers."""

from collections.abc import Iterable, Mapping

__all__ = ["sum_metrics"]


def sum_metrics(figures: Iterable[Mapping[str, float] | None]) -> dict[str, float]:
    """Adds metrics up by name."""
    sums: dict[str, float] = {}
    for each in figures:
        for name, value in (each or {}).items():
            sums[name] = sums.get(name, 0.0) + value
    return sums
