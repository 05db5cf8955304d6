"""A server process with another interpreter, for packages whose dependencies conflict with ours."""

import os
import subprocess
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path

__all__ = ["OtherInterpreter"]

_LINES = 20
"""Last lines of standard error that explain a crash."""


class OtherInterpreter:
    """A server of this folder with an adapter, spoken to through its standard streams."""

    def __init__(self, python: str, server: str, adapter: str) -> None:
        """Starts the process, which leads a process group. Raises OSError."""
        self.process = subprocess.Popen(
            # -I: neither our folder nor PYTHONPATH
            [python, "-I", str(Path(__file__).parent / server), adapter, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
        self._errors: deque[str] = deque(maxlen=_LINES)
        self._reader = threading.Thread(target=self._read_errors, daemon=True, name="environment stderr")
        self._reader.start()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def send(self, line: bytes) -> None:
        """Writes a request. Raises OSError if the process has ended, ValueError if it was closed."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def last_words(self) -> str:
        """Returns the last lines of standard error of a process that has ended, after ": "; empty if there are none."""
        self._reader.join(1.0)
        said = "; ".join(list(self._errors)[-3:])[-500:]
        return f": {said}" if said else ""

    def join_errors(self) -> None:
        """Waits for the end of standard error, before the pipes are closed."""
        self._reader.join(5.0)

    def close_pipes(self) -> None:
        """Frees the pipes of a process that has ended."""
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        with suppress(ValueError, OSError):  # closed meanwhile
            for line in self.process.stderr:
                if text := line.decode(errors="replace").strip():
                    self._errors.append(text)
