"""Which judge service to ask: the least busy one of those that work.

A service that failed several times in a row is left alone for a while (its circuit is open). Then one submission
tries it; if that goes well, the others follow. What is asked, and when to give up, is `client.py`'s business.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["Circuit", "pick"]


@dataclass(eq=False)
class Circuit:
    """One service, and how it has been doing."""

    url: str
    limit: int
    """Failures in a row after which it is left alone."""
    cool_down_s: float
    load: int = 0
    failures: int = 0
    opened_at: float | None = None
    probing: bool = False

    def ready(self, now: float) -> bool:
        return self.opened_at is None or (not self.probing and self.wait(now) == 0)

    def wait(self, now: float) -> float:
        """Seconds until it may be tried."""
        return 0.0 if self.opened_at is None else max(0.0, self.opened_at + self.cool_down_s - now)

    @contextmanager
    def attempt(self) -> Iterator[None]:
        probe = self.opened_at is not None
        self.load += 1
        self.probing = self.probing or probe
        try:
            yield
        finally:
            self.load -= 1
            if probe:
                self.probing = False

    def succeeded(self) -> None:
        self.failures = 0
        self.opened_at = None

    def failed(self, now: float) -> None:
        self.failures += 1
        if self.failures >= self.limit:
            self.opened_at = now


def pick(circuits: Sequence[Circuit], tried: Collection[Circuit], now: float) -> Circuit | None:
    """The one to ask next, if any is left. One to be probed comes first: nobody would ever return to it otherwise."""
    ready = [each for each in circuits if each not in tried and each.ready(now)]
    return min(ready, key=lambda each: (each.opened_at is None, each.load), default=None)
