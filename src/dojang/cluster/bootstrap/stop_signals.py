"""Signals that ask this process to stop, kept until somebody looks."""

import signal
import threading
import time

__all__ = ["Stop"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Stop:
    """Whether to stop, since when, and which signals have not been passed on yet."""

    def __init__(self) -> None:
        self.since: float | None = None
        self._pending: list[int] = []
        self._asked = threading.Event()

    def install(self) -> None:
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup does with SIGHUP
                signal.signal(number, lambda number, _: self.ask(number))

    def ask(self, number: int) -> None:
        self._pending.append(number)
        self.since = self.since or time.monotonic()
        self._asked.set()

    def take(self) -> list[int]:
        """The signals that came since it was asked last."""
        taken, self._pending = self._pending, []
        return taken

    def wait(self, seconds: float) -> bool:
        """Wait, but not longer than until one comes. Whether one has come, ever."""
        return self._asked.wait(seconds)
