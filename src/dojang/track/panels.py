"""Metrics, and the dashboard panels and rows that show them."""

from dataclasses import dataclass

__all__ = ["Metric", "Panel", "Row", "mean_min_max", "panel", "row"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of metrics.jsonl, or a family of metrics."""

    name: str
    """Angle brackets mark a family; they stand for a name of the run: val/accuracy/<source>."""
    meaning: str
    unit: str = ""
    """Empty for a number without a unit."""

    @property
    def is_family(self) -> bool:
        return "<" in self.name


@dataclass(frozen=True, slots=True)
class Panel:
    """Metrics drawn in one panel; all have the same unit."""

    title: str
    metrics: tuple[Metric, ...]
    stacked: bool = False
    """Whether to stack them, as parts of a whole."""


@dataclass(frozen=True, slots=True)
class Row:
    """A dashboard row of panels."""

    title: str
    panels: tuple[Panel, ...]


def panel(title: str, *metrics: Metric, stacked: bool = False) -> Panel:
    """Makes a panel."""
    return Panel(title, metrics, stacked)


def row(title: str, *panels: Panel) -> Row:
    """Makes a dashboard row."""
    return Row(title, panels)


def mean_min_max(name: str, what: str, unit: str = "") -> tuple[Metric, ...]:
    """Makes the three metrics of a quantity."""
    return tuple(
        Metric(f"{name}/{which}", f"{word} {what}", unit)
        for which, word in (("mean", "Mean"), ("min", "Minimum"), ("max", "Maximum"))
    )
