"""Who may come in: the judge service's bounded queue, its way of closing down, and its figures for Prometheus.

    admitted = waiting (uploading, or for a slot) + running (handed to the judge)

What is asked and what is answered is `service.py`'s business.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from dojang.types import Outcome

__all__ = ["Figures", "Full", "Gate"]

SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Full(Exception):
    """There is no room; try again later."""


class Gate:
    """Lets in at most `queue` requests, and hands at most `slots` of them at a time to the judge."""

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
        """A place in the queue while the block lasts. Raises Full."""
        if self.admitted >= self.queue:
            raise Full
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
        """The judge's attention while the block lasts."""
        async with self._slots:
            self.running += 1
            try:
                yield
            finally:
                self.running -= 1

    async def empty(self) -> None:
        """Returns once nobody is inside."""
        await self._empty.wait()


class Figures:
    """What Prometheus is told. The registry is its own: other figures of the process are none of its business."""

    def __init__(self, gate: Gate, languages: Sequence[str]) -> None:
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
        waiting.set_function(lambda: gate.waiting)
        running = Gauge("dojang_judge_running", "Programs the judge is working on.", registry=registry)
        running.set_function(lambda: gate.running)

    def judged(self, language: str, outcome: Outcome, isolation: str, started: float) -> None:
        """Count a reply; `started` is time.monotonic() at the request."""
        known = language if language in self._languages else "other"  # a client could invent names without end
        self._submissions.labels(known, str(outcome), isolation).inc()
        self._seconds.observe(time.monotonic() - started)
        if outcome is Outcome.JUDGE_ERROR:
            self._failures.inc()

    def rejected(self, reason: str) -> None:
        self._rejected.labels(reason).inc()

    def text(self) -> bytes:
        return generate_latest(self._registry)
