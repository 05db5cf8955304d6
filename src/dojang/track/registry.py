"""Registry of metrics: meaning, unit and dashboard panel of every metric in metrics.jsonl.

Packages that write metrics do not import this file. Tests compare it with real runs and with the names in the source,
so a new metric needs an entry in metric_rows.py; docs/metrics.md, the dashboard and the exporters' help texts are
generated from it. Metrics of a custom algorithm (`algo.name=custom`) are recorded and exported without an entry.
"""

import re
from collections.abc import Iterator

from dojang.track.metric_rows import ROWS
from dojang.track.panels import Metric

__all__ = [
    "GAUGES",
    "ROLES",
    "ROWS",
    "describe",
    "find",
    "gauge_name",
    "gauge_pattern",
    "metrics",
    "per_role",
]

ROLES = ("tester",)
"""Roles of further trained models; their metrics have the role as prefix."""
_PER_ROLE = ("critic/", "actor/", "response_length/", "groups/", "judge/")
"""Prefixes of metrics that every role has."""

GAUGES = {
    "dojang_step": "Newest step.",
    "dojang_steps": "Total number of steps of the run.",
    "dojang_step_time_seconds": "Unix time at which the newest line of metrics.jsonl was read.",
}
"""Gauges that exporters add to the metrics."""


def metrics() -> Iterator[Metric]:
    """Yields all metrics in order."""
    return (metric for each in ROWS for shown in each.panels for metric in shown.metrics)


def per_role(metric: Metric) -> bool:
    """Returns whether each of ROLES has this metric."""
    return metric.name.startswith(_PER_ROLE)


def find(name: str) -> Metric | None:
    """Returns the metric or family that a name of metrics.jsonl belongs to."""
    role, _, rest = name.partition("/")
    if role in ROLES:
        found = find(rest)
        return found if found is not None and per_role(found) else None
    # An exact name takes precedence over families that match it.
    fitting = [metric for metric in metrics() if _pattern(metric.name).fullmatch(name)]
    return min(fitting, key=lambda metric: metric.is_family, default=None)


def describe(name: str) -> str:
    """Returns a metric's help text."""
    found = find(name)
    if found is None:
        return f"{name} of metrics.jsonl."
    role = name.partition("/")[0]
    return f"{f'({role}) ' if role in ROLES else ''}{found.meaning}{f' ({found.unit})' if found.unit else ''}"


def gauge_name(metric: str) -> str:
    """Returns the name as a Prometheus gauge: critic/rewards/mean -> dojang_critic_rewards_mean."""
    return f"dojang_{_plain(metric)}"


def gauge_pattern(metric: Metric) -> str:
    """Returns a regular expression for its gauges, of the whole family and all roles."""
    parts = (".+" if part[:1] == "<" else _plain(part) for part in _parts(metric.name))
    roles = f"({'|'.join(f'{role}_' for role in ROLES)})?" if per_role(metric) else ""
    return f"dojang_{roles}{'_'.join(filter(None, parts))}"


def _plain(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9]+", "_", name).strip("_")


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile("".join(".+" if part[:1] == "<" else re.escape(part) for part in _parts(name)))


def _parts(name: str) -> list[str]:
    """Splits a name at its placeholders in angle brackets, keeping them."""

    return re.split(r"(<\w+>)", name)
