"""The newest figures for Prometheus to fetch: gauges behind HTTP, as long as the run lasts.

Prometheus asks when it likes, so steps between two of its questions are not in it; it is for watching a run, and
metrics.jsonl has the rest. Whether it asks, or what becomes of it, does not concern the run.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from dojang.core.errors import ConfigError
from dojang.track.exporter import Row
from dojang.track.registry import GAUGES, about, gauge_name

__all__ = ["PrometheusSink"]


class PrometheusSink(Collector):
    """A Sink that answers questions about the last row."""

    name = "prometheus"
    address = ""

    def __init__(self, host: str, port: int, run: str, steps: int) -> None:
        """Listens from now on: a port that is taken is a mistake to be told before the run."""
        self._run = run
        self._steps = steps
        self._lock = threading.Lock()
        self._figures: dict[str, float] = {}
        self._step = 0
        self._seen = 0.0
        self._fetched = 0
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on track.prometheus.host={host}, port={port}: {error.strerror or error}; choose others"
            ) from error
        self.port = int(self._server.server_port)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Called for every question."""
        with self._lock:
            figures, step, seen = dict(self._figures), self._step, self._seen
            self._fetched = step
        if not figures:
            return
        values = (float(step), float(self._steps), seen)
        families = {
            name: self._family(name, text, {"": value})
            for (name, text), value in zip(GAUGES.items(), values, strict=True)
        }
        named: dict[str, dict[str, float]] = {}
        for figure, value in figures.items():
            named.setdefault(gauge_name(figure), {})[figure] = value
        for name, members in named.items():
            families.setdefault(name, self._family(name, about(next(iter(members))), members))
        yield from families.values()

    def begin(self, memory: dict[str, Any], keep: Callable[[], None]) -> None:
        return None

    def tell(self, rows: Sequence[Row]) -> None:
        with self._lock:
            for row in rows:
                self._figures.update(row.values)
            self._step, self._seen = rows[-1].step, rows[-1].seen

    def end(self, status: str) -> str:
        with self._lock:
            missed = self._step - self._fetched
        return f"nobody has fetched the figures of the last {missed} steps; metrics.jsonl has them" if missed else ""

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _family(self, name: str, about: str, members: dict[str, float]) -> GaugeMetricFamily:
        """Figures whose names differ only in what Prometheus does not allow are told apart by a label."""
        labels = ["run", "figure"] if any(members) else ["run"]
        family = GaugeMetricFamily(name, about, labels=labels)
        for figure, value in members.items():
            family.add_metric([self._run, figure][: len(labels)], value)
        return family
