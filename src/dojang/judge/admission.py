"""Admission control of the judge service (bounded queue, draining), and its Prometheus metrics.

    admitted = waiting (uploading, or for a slot) + running (sent to the judge)

The routes are in `service.py`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from dojang.types import Outcome

__all__ = ["AdmissionControl", "QueueFull", "ServiceMetrics"]

SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class QueueFull(Exception):
    """The queue is full; the client must retry later."""


class AdmissionControl:
    """Admits at most `queue` requests and sends at most `slots` of them to the judge at a time."""

    def __init__(self, queue: int, slots: int) -> None:
        self.queue = queue
        self.admitted = 0
        self.running = 0
        self.draining = False
        self._slots = asyncio.Semaphore(slots)
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def waiting(self) -> int:
        return self.admitted - self.running

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Hold a place in the queue for the duration of the block. Raises QueueFull."""
        if self.admitted >= self.queue:
            raise QueueFull
        self.admitted += 1
        self._empty.clear()
        try:
            yield
        finally:
            self.admitted -= 1
            if not self.admitted:
                self._empty.set()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold one of the judge's slots for the duration of the block."""
        async with self._slots:
            self.running += 1
            try:
                yield
            finally:
                self.running -= 1

    async def empty(self) -> None:
        """Wait until no request is admitted."""
        await self._empty.wait()


class ServiceMetrics:
    """Prometheus metrics of the service, in a separate registry: other metrics of the process are not exported."""

    def __init__(self, admission: AdmissionControl, languages: Sequence[str]) -> None:
        self._languages = frozenset(languages)
        self._registry = registry = CollectorRegistry()
        self._submissions = Counter(
            "dojang_judge_submissions_total",
            "Programs judged or run.",
            ("language", "outcome", "isolation"),
            registry=registry,
        )
        self._seconds = Histogram(
            "dojang_judge_seconds", "Seconds from request to reply.", buckets=SECONDS, registry=registry
        )
        self._rejected = Counter(
            "dojang_judge_rejected_total", "Requests refused without judging.", ("reason",), registry=registry
        )
        self._failures = Counter(
            "dojang_judge_machinery_failures_total", "Programs the judge could not judge.", registry=registry
        )
        waiting = Gauge("dojang_judge_waiting", "Requests waiting for the judge.", registry=registry)
        waiting.set_function(lambda: admission.waiting)
        running = Gauge("dojang_judge_running", "Programs the judge is working on.", registry=registry)
        running.set_function(lambda: admission.running)

    def count_judged(self, language: str, outcome: Outcome, isolation: str, started: float) -> None:
        """Count a reply. `started` is time.monotonic() when the request arrived."""
        known = language if language in self._languages else "other"  # a client could invent any number of names
        self._submissions.labels(known, str(outcome), isolation).inc()
        self._seconds.observe(time.monotonic() - started)
        if outcome is Outcome.JUDGE_ERROR:
            self._failures.inc()

    def count_rejected(self, reason: str) -> None:
        self._rejected.labels(reason).inc()

    def text(self) -> bytes:
        return generate_latest(self._registry)
