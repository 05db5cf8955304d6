"""Commands under a keeper, as seen by whoever started them."""

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

__all__ = ["Kept"]

_KEEPER = Path(__file__).with_name("subreaper.py")
_SWEEP = 15.0  # what the keeper takes at most to end what was left behind, and a little


class Kept:
    """A command that ends with this process, with all that it has started. As a context: at the latest on leaving."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        output: int | IO[Any] | None = None,
        grace: float = 5.0,
    ) -> None:
        """`output` is for both streams, and None passes them on; `grace` is how long it may take to end, if asked."""
        self.grace = grace
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_KEEPER), str(grace), *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,  # Ctrl-C in a terminal is for this process; it says what follows
        )

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    @property
    def age(self) -> float:
        return time.monotonic() - self._began

    @property
    def lines(self) -> IO[bytes]:
        """What it writes, if `output` was subprocess.PIPE."""
        assert self._process.stdout is not None
        return self._process.stdout

    def signal(self, number: int) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended
            os.write(self._process.stdin.fileno(), bytes([number]))

    def stop(self) -> int:
        """SIGTERM, and SIGKILL for what does not obey. Returns when nothing is left of it."""
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
        """Without waiting for it to obey."""
        self.signal(signal.SIGKILL)
        return self.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
