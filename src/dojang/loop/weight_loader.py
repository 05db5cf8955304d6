"""Loads published weights into the engines of a run, each version once, and measures how long that takes."""

import time
from collections.abc import Awaitable, Callable

from dojang.core.sum_metrics import sum_metrics
from dojang.loop.watchdog import activity
from dojang.types import Metrics

__all__ = ["WeightLoader"]


class WeightLoader:
    """Knows which version the engines hold."""

    def __init__(self, load: Callable[[int], Awaitable[Metrics | None]], loaded: int | None) -> None:
        """`loaded` is the version that the engines hold, if it is known."""
        self._load, self._loaded = load, loaded
        self._figures: Metrics = {}

    async def load(self, version: int) -> None:
        """Loads a version, unless the engines hold it already."""
        if version == self._loaded:
            return
        self._loaded = None  # unknown while loading
        started = time.monotonic()
        with activity("load"):
            found = await self._load(version) or {}
        timed = {**found, "timing_s/load": time.monotonic() - started}
        self._figures = sum_metrics([self._figures, timed])  # an evaluation may need another version than the batch
        self._loaded = version

    def take_figures(self) -> Metrics:
        """Metrics of all loads since the last call."""
        figures, self._figures = self._figures, {}
        return figures
