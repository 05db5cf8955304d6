"""The newest figures through Ray's own exporter, for a run on a Ray cluster: each node of one has an exporter already.

Gauges are named as in track/prometheus.py; Ray puts `ray_` before that, and has labels of its own
beside `run` and `figure`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from dojang.track.exporter import Row
from dojang.track.registry import GAUGES, about, gauge_name

__all__ = ["RaySink"]


class RaySink:
    """A Sink that sets Ray's gauges. They are there as long as this process belongs to the cluster."""

    name = "ray"
    address = ""

    def __init__(self, run: str, steps: int) -> None:
        self._run = run
        self._steps = steps
        self._gauges: dict[str, Any] = {}

    def begin(self, memory: dict[str, Any], keep: Callable[[], None]) -> None:
        import ray

        if not ray.is_initialized():  # values set now would silently go nowhere
            raise RuntimeError("this process does not belong to a Ray cluster (yet)")

    def tell(self, rows: Sequence[Row]) -> None:
        for row in rows:
            for name, value in zip(GAUGES, (row.step, self._steps, row.seen), strict=True):
                self._gauge(name, GAUGES[name], ("run",)).set(value, {"run": self._run})
            for figure, value in row.values.items():
                gauge = self._gauge(gauge_name(figure), about(figure), ("run", "figure"))
                gauge.set(value, {"run": self._run, "figure": figure})

    def end(self, status: str) -> str:
        return ""

    def close(self) -> None:
        return None

    def _gauge(self, name: str, description: str, labels: tuple[str, ...]) -> Any:
        from ray.util.metrics import Gauge

        if name not in self._gauges:
            self._gauges[name] = Gauge(name, description, labels)
        return self._gauges[name]
