"""Ctrl-C while a command starts: ends the process at once, with exit code 130 and without a traceback.

Python's own handler raises KeyboardInterrupt wherever the program happens to be. During imports and in destructors it
is printed as a traceback or swallowed. Nothing needs saving before a command begins its work, so the process ends.

Only the command line installs this: in a notebook or a script, KeyboardInterrupt stays. This module is the first that
a command imports, so it imports only what Python has loaded already.
"""

import os
import signal
import sys
from types import FrameType, TracebackType

__all__ = ["CHILD_GROUPS", "exit_at_once", "install", "release", "restore"]

CHILD_GROUPS: set[int] = set()
"""Process groups that end with this process."""
_EXIT_CODE = 130
_installed = False


def install() -> None:
    """Makes Ctrl-C end this process at once. A process that ignores SIGINT, as a background job may, stays so."""
    global _installed
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        _installed = True
        signal.signal(signal.SIGINT, _leave)


def release() -> None:
    """Makes Ctrl-C raise KeyboardInterrupt again, for commands that clean up."""
    if _installed:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def restore() -> None:
    """Makes Ctrl-C end the process at once again, when a command has done its work."""
    if _installed and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


class exit_at_once:
    """Context in which Ctrl-C ends the process at once, while modules are imported; only in a command."""

    def __enter__(self) -> None:
        import threading

        in_main = threading.current_thread() is threading.main_thread()
        self._before = signal.signal(signal.SIGINT, _leave) if _installed and in_main else None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)


def _leave(number: int, frame: FrameType | None) -> None:
    try:  # noqa: SIM105 -- contextlib may not be loaded yet
        sys.stdout.flush()
    except Exception:  # closed, or the signal came in the middle of a write
        pass
    for group in tuple(CHILD_GROUPS):
        try:  # noqa: SIM105
            os.killpg(group, signal.SIGKILL)
        except OSError:
            pass
    os.write(2, b"dojang: interrupted\n")
    os._exit(_EXIT_CODE)
