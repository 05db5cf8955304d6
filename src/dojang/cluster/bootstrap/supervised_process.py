"""Runs commands under a subreaper, so that they and all their descendants end with this process."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

__all__ = ["SupervisedProcess"]

_SUBREAPER = Path(__file__).with_name("subreaper.py")
_SWEEP = 15.0  # seconds: longer than the subreaper's own limit for killing descendants


class SupervisedProcess:
    """A command that ends with this process, with all its descendants. As a context manager: on exit."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        output: int | IO[Any] | None = None,
        grace: float = 5.0,
    ) -> None:
        """Starts the command. `output` takes stdout and stderr (None inherits); `grace` is in seconds after SIGTERM."""
        self.grace = grace
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SUBREAPER), str(grace), *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,  # Ctrl-C in a terminal reaches only this process, which forwards it
        )

    def poll(self) -> int | None:
        """Exit code; None while running."""
        return self._process.poll()

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._started

    @property
    def lines(self) -> IO[bytes]:
        """Its output, if `output` was subprocess.PIPE."""
        assert self._process.stdout is not None
        return self._process.stdout

    def signal(self, number: int) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended
            os.write(self._process.stdin.fileno(), bytes([number]))

    def stop(self) -> int:
        """Sends SIGTERM, then SIGKILL after the grace period. Returns the exit code once all descendants are gone."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            code = self._process.wait(self.grace + _SWEEP)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code

    def kill(self) -> int:
        """Sends SIGKILL at once."""
        self.signal(signal.SIGKILL)
        return self.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
