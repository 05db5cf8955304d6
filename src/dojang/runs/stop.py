"""Requests to stop a run: by a signal in the main thread, by a call from any other thread."""

import asyncio
import signal
import threading

__all__ = ["STOP_SIGNALS", "StopRequest", "in_main_thread"]

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def in_main_thread() -> bool:
    """Whether this is the main thread: Python allows signal handlers only there."""
    return threading.current_thread() is threading.main_thread()


class StopRequest:
    """Asks a run in another thread to save a checkpoint and stop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked = False
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def ask(self) -> None:
        """Asks to stop; takes effect when the training loop starts, if it has not yet."""
        with self._lock:
            self._asked = True
            if self._running is not None:
                loop, event = self._running
                loop.call_soon_threadsafe(event.set)

    def connect(self, loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
        """Sets `event` on a request, also on one that came before."""
        with self._lock:
            self._running = loop, event
            if self._asked:
                event.set()

    def disconnect(self) -> None:
        """Ends the connection, before the event loop closes."""
        with self._lock:
            self._running = None
