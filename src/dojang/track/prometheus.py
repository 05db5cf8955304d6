"""Prometheus exporter: serves the newest metrics as gauges over HTTP during the run.

Prometheus misses steps between two scrapes: it is for watching a run, and metrics.jsonl has every step. A Prometheus
that is down does not affect the run.
"""

import threading
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from dojang.core.errors import ConfigError
from dojang.track.exporter import Row, Sink
from dojang.track.registry import GAUGES, describe, gauge_name

__all__ = ["PrometheusSink"]


class PrometheusSink(Collector, Sink):
    """A Sink that serves the newest values to scrapes."""

    name = "prometheus"

    def __init__(self, host: str, port: int, run: str, steps: int) -> None:
        """Listens at once, so that a port in use is an error before the run starts."""
        self._run = run
        self._steps = steps
        self._lock = threading.Lock()
        self._metrics: dict[str, float] = {}
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
        """Returns the gauges; called for every scrape."""
        with self._lock:
            metrics, step, seen = dict(self._metrics), self._step, self._seen
            self._fetched = step
        if not metrics:
            return
        values = (float(step), float(self._steps), seen)
        families = {
            name: self._family(name, text, {"": value})
            for (name, text), value in zip(GAUGES.items(), values, strict=True)
        }
        named: dict[str, dict[str, float]] = {}
        for metric, value in metrics.items():
            named.setdefault(gauge_name(metric), {})[metric] = value
        for name, members in named.items():
            families.setdefault(name, self._family(name, describe(next(iter(members))), members))
        yield from families.values()

    def write_rows(self, rows: Sequence[Row]) -> None:
        with self._lock:
            for row in rows:
                self._metrics.update(row.values)
            self._step, self._seen = rows[-1].step, rows[-1].read_at

    def finish(self, status: str) -> str:
        with self._lock:
            missed = self._step - self._fetched
        return f"Prometheus did not scrape the last {missed} steps; metrics.jsonl has them" if missed else ""

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _family(self, name: str, description: str, members: dict[str, float]) -> GaugeMetricFamily:
        """Builds a gauge. The label `metric` distinguishes names that become the same gauge name."""
        labels = ["run", "metric"] if any(members) else ["run"]
        family = GaugeMetricFamily(name, description, labels=labels)
        for metric, value in members.items():
            family.add_metric([self._run, metric][: len(labels)], value)
        return family
