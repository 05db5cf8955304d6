"""Interactive Python session in the judge's sandbox: variables live from one piece of code to the next.

A session has a separate worker, started by the first piece of code: the isolation and limits are those of judged
programs (sandbox/session.py). Closing it ends all of its processes, also while code is running.
"""

import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dojang.core.paths import cache_root
from dojang.judge.host_capabilities import HostCapabilities
from dojang.judge.worker_handle import WorkerFailed, WorkerHandle
from dojang.programs import Limits

__all__ = ["MOST_CODE", "PythonSession", "SessionOutput", "session_host"]

MOST_CODE = 50_000
"""Longest piece of code in bytes: it must fit a pipe."""


@dataclass(frozen=True, slots=True)
class SessionOutput:
    """Result of a piece of code."""

    text: str
    """Printed text, value of a last expression, traceback."""
    ended: str = ""
    """Reason why the interpreter ended and lost its variables; empty if it goes on."""


@cache
def session_host(isolation: str, python: str, packages: tuple[str, ...], section: str = "judge") -> HostCapabilities:
    """Returns the capabilities of this machine, which are found once per process."""
    return HostCapabilities(isolation, python, cache_root(), packages, section)


@cache
def _driver() -> bytes:
    return (Path(__file__).parent / "sandbox" / "session_driver.py").read_bytes()


class PythonSession:
    """One session. Blocks while code runs; may be closed from another thread."""

    def __init__(self, host: HostCapabilities, limits: Limits) -> None:
        self._host = host
        self._limits = limits
        self._lock = threading.Lock()
        self._handle: WorkerHandle | None = None
        self._closed = False

    def run(self, code: str) -> SessionOutput:
        """Runs a piece of code. Raises ValueError if it is no text that Python could run, and WorkerFailed if the
        sandbox failed, not the code."""
        source = code.encode()  # no lone surrogates: they would end the interpreter
        if b"\0" in source:
            raise ValueError("code must not contain null characters")
        if len(source) > MOST_CODE:
            raise ValueError(f"{len(source)} bytes of code; at most {MOST_CODE} are allowed")
        with self._lock:
            if self._closed:
                raise WorkerFailed("the session is closed")
            if self._handle is None:
                self._handle = WorkerHandle(self._host)
            output, ended = self._handle.run_cell(_driver(), source, self._limits)
        return SessionOutput(output.decode(errors="replace"), ended)

    def close(self) -> None:
        """Ends the session."""
        self._closed = True
        if self._handle is not None:
            self._handle.disconnect()  # code that still runs ends now
        with self._lock:
            if self._handle is not None:
                self._handle.close()
                self._handle = None
