"""Grafana's dashboard of a run, made from the registry: a row for each of its rows, a panel for each of its panels.

Plain dictionaries in the JSON model that Grafana has read since version 8; nothing here has to be kept in step with a
library of it. The dashboard reads what Prometheus has fetched from the exporters of runs.
"""

from collections.abc import Iterator
from typing import Any

from dojang.track.registry import ROWS, Figure, Panel, gauge_name, gauge_pattern

__all__ = ["UID", "dashboard", "selector"]

UID = "dojang"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_UNITS = {"share": "percentunit", "s": "s", "bytes": "bytes", "tokens/s": "suffix: tok/s"}
"""Ours in Grafana's words; numbers without one, and of things that are counted, are plain."""
_WIDTH, _HEIGHT, _WHOLE = 8, 8, 24

_OVERVIEW = (
    ("Step", 'dojang_step{run=~"$run"}', "none"),
    ("Done", 'dojang_step{run=~"$run"} / dojang_steps{run=~"$run"}', "percentunit"),
    ("Since the last step", 'time() - dojang_step_time_seconds{run=~"$run"}', "s"),
    ("Reward", 'dojang_critic_rewards_mean{run=~"$run"}', "none"),
    ("Held-out accuracy", 'dojang_val_accuracy{run=~"$run"}', "percentunit"),
    ("Held-out reward", 'dojang_val_reward{run=~"$run"}', "none"),
    ("Not judged", 'dojang_judge_error_ratio{run=~"$run"}', "percentunit"),
)


def dashboard() -> dict[str, Any]:
    """What dojang.json holds."""
    return {
        "uid": UID,
        "title": "dojang",
        "description": "Training runs. Made by `dojang dashboards`; changes are better made in a copy.",
        "tags": ["dojang"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_datasource(), _run()]},
        "annotations": {"list": []},
        "panels": list(_panels()),
    }


def selector(figure: Figure) -> str:
    """The gauges of a figure, or of a family, for the runs chosen."""
    pattern = gauge_pattern(figure)
    if pattern == gauge_name(figure.name):
        return f'{pattern}{{run=~"$run"}}'
    return f'{{__name__=~"{pattern}",run=~"$run"}}'


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _run() -> dict[str, Any]:
    query = "label_values(dojang_step, run)"
    return {
        "name": "run",
        "label": "Run",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": "run"},
        "refresh": 2,  # whenever the time range changes: runs come and go
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _panels() -> Iterator[dict[str, Any]]:
    """Numbered, and each in its place."""
    number, top = 1, 0
    for title, panels in _rows():
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": _at(0, top)}
        number, top, left = number + 1, top + 1, 0
        height = max(panel["gridPos"]["h"] for panel in panels)
        for panel in panels:
            if left + panel["gridPos"]["w"] > _WHOLE:
                left, top = 0, top + height
            yield {"id": number, **panel, "gridPos": {**panel["gridPos"], "x": left, "y": top}}
            number, left = number + 1, left + panel["gridPos"]["w"]
        top += height


def _at(left: int, top: int) -> dict[str, int]:
    return {"h": 1, "w": _WHOLE, "x": left, "y": top}


def _rows() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    yield "Overview", [_stat(*each) for each in _OVERVIEW]
    for row in ROWS:
        yield row.title, [_timeseries(panel) for panel in row.panels]


def _stat(title: str, expr: str, unit: str) -> dict[str, Any]:
    return {
        "type": "stat",
        "title": title,
        "datasource": _SOURCE,
        "targets": [_target("A", expr, "{{run}}")],
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "options": {"reduceOptions": {"calcs": ["lastNotNull"], "values": False}, "colorMode": "none"},
        "gridPos": {"h": 4, "w": _WHOLE // len(_OVERVIEW)},
    }


def _timeseries(panel: Panel) -> dict[str, Any]:
    drawn = {"fillOpacity": 30, "stacking": {"mode": "normal", "group": "A"}} if panel.stacked else {"fillOpacity": 0}
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": "\n\n".join(f"`{figure.name}`: {figure.meaning}" for figure in panel.figures),
        "datasource": _SOURCE,
        "targets": [
            _target(chr(ord("A") + at), selector(figure), "{{run}} {{figure}}")
            for at, figure in enumerate(panel.figures)
        ],
        "fieldConfig": {
            "defaults": {"unit": _UNITS.get(panel.figures[0].unit, "none"), "custom": {"lineWidth": 1, **drawn}},
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "gridPos": {"h": _HEIGHT, "w": _WIDTH},
    }


def _target(letter: str, expr: str, legend: str) -> dict[str, Any]:
    return {"refId": letter, "datasource": _SOURCE, "expr": expr, "legendFormat": legend, "range": True}
