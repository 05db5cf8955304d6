"""Records the signals that ask this process to stop."""

import signal
import threading
import time

__all__ = ["Stop"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Stop:
    """Stop requests: the time of the first one, and the signals not yet forwarded."""

    def __init__(self) -> None:
        self.since: float | None = None
        self._pending: list[int] = []
        self._asked = threading.Event()

    def install(self) -> None:
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP: keep that
                signal.signal(number, lambda number, _: self.ask(number))

    def ask(self, number: int) -> None:
        self._pending.append(number)
        self.since = self.since or time.monotonic()
        self._asked.set()

    def take(self) -> list[int]:
        """Returns the signals received since the last call."""
        taken, self._pending = self._pending, []
        return taken

    def wait(self, seconds: float) -> bool:
        """Waits up to `seconds` for a signal. Returns whether one has ever been received."""
        return self._asked.wait(seconds)
