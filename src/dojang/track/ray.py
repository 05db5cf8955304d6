"""Exports the newest metrics through the metrics exporter that every node of a Ray cluster has.

Gauges are named as in track/prometheus.py; Ray adds the prefix `ray_`, and its labels beside `run` and `metric`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from dojang.track.exporter import Row, Sink
from dojang.track.registry import GAUGES, describe, gauge_name

__all__ = ["RaySink"]


class RaySink(Sink):
    """A Sink that sets Ray gauges. They exist as long as this process belongs to the cluster."""

    name = "ray"

    def __init__(self, run: str, steps: int) -> None:
        self._run = run
        self._steps = steps
        self._gauges: dict[str, Any] = {}

    def start(self, state: dict[str, Any], save_state: Callable[[], None]) -> None:
        import ray

        if not ray.is_initialized():  # Ray would silently drop the values
            raise RuntimeError("this process does not belong to a Ray cluster (yet)")

    def write_rows(self, rows: Sequence[Row]) -> None:
        for row in rows:
            for name, value in zip(GAUGES, (row.step, self._steps, row.read_at), strict=True):
                self._gauge(name, GAUGES[name], ("run",)).set(value, {"run": self._run})
            for metric, value in row.values.items():
                gauge = self._gauge(gauge_name(metric), describe(metric), ("run", "metric"))
                gauge.set(value, {"run": self._run, "metric": metric})

    def _gauge(self, name: str, description: str, labels: tuple[str, ...]) -> Any:
        from ray.util.metrics import Gauge

        if name not in self._gauges:
            self._gauges[name] = Gauge(name, description, labels)
        return self._gauges[name]
