"""Combines several trackers into one."""

from collections.abc import Sequence

from dojang.protocols import TokenValues, Tracker
from dojang.types import Group, Metrics

__all__ = ["MultiTracker"]


class MultiTracker:
    """A Tracker that forwards each call to all of its trackers."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = trackers

    def metrics(self, step: int, values: Metrics) -> None:
        for tracker in self._trackers:
            tracker.metrics(step, values)

    def groups(self, step: int, split: str, groups: Sequence[Group]) -> None:
        for tracker in self._trackers:
            tracker.groups(step, split, groups)

    def token_values(self, step: int, values: Sequence[TokenValues]) -> None:
        for tracker in self._trackers:
            tracker.token_values(step, values)

    def close(self) -> None:
        for tracker in self._trackers:
            tracker.close()
