"""Circuit breaker: chooses the least busy judge service among those that work.

After several failures in a row the circuit of a service opens, and the service is skipped for a while. Then one
submission probes it; if that succeeds, the circuit closes. Requests and retries are in `client.py`.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["CircuitBreaker", "pick"]


@dataclass(eq=False)
class CircuitBreaker:
    """State of one service."""

    url: str
    limit: int
    """Failures in a row that open the circuit."""
    cool_down_s: float
    load: int = 0
    failures: int = 0
    opened_at: float | None = None
    probing: bool = False

    def ready(self, now: float) -> bool:
        return self.opened_at is None or (not self.probing and self.wait(now) == 0)

    def wait(self, now: float) -> float:
        """Seconds until the service may be probed."""
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


def pick(circuits: Sequence[CircuitBreaker], tried: Collection[CircuitBreaker], now: float) -> CircuitBreaker | None:
    """Choose the next service, None if none is left. A service to be probed comes first: it is tried no other way."""
    ready = [each for each in circuits if each not in tried and each.ready(now)]
    return min(ready, key=lambda each: (each.opened_at is None, each.load), default=None)
