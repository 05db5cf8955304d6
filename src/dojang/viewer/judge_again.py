"""Judges a recorded response again, and finds the tests of its problem.

Both need the run's data, and may run code that the run's configuration names. They happen in a child process, which
starts when it is first asked and is killed if it takes too long.
"""

import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

from dojang.core.errors import ConfigError, JudgeError
from dojang.core.interrupt import CHILD_GROUPS
from dojang.core.run_files import RunFiles

__all__ = ["GradingProcess", "same_verdict"]

_LIMIT_S = 300.0
"""Seconds for a reply: importing the task and loading the data may take a minute."""
_MODULE = "dojang.viewer.grading_process"


class GradingProcess:
    """Child process that grades for one run."""

    def __init__(self, files: RunFiles, config: Path) -> None:
        """`config` is a free path for a copy of the run's configuration."""
        self._files, self._config = files, config
        self._lock = Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def ask(self, request: dict[str, str], limit_s: float = _LIMIT_S) -> dict[str, Any]:
        """Reply to a request (grading_process.py), with the seconds it took. Raises JudgeError if there is none."""
        began = time.monotonic()
        if not self._lock.acquire(timeout=limit_s):
            raise JudgeError("another sample of this run is still being judged; try again later")
        try:
            child = self._start()
            reply = self._exchange(child, json.dumps(request).encode() + b"\n", began + limit_s)
        finally:
            self._lock.release()
        if "error" in reply:
            raise JudgeError(str(reply["error"]))
        return reply | {"seconds": round(time.monotonic() - began, 3)}

    def close(self) -> None:
        """Ends the process, and all that it started."""
        child, self._child = self._child, None
        if child is None:
            return
        assert child.stdin is not None
        assert child.stdout is not None
        with suppress(OSError):
            child.stdin.close()
        with suppress(OSError):  # nothing it does needs to be saved
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        CHILD_GROUPS.discard(child.pid)

    def _start(self) -> "subprocess.Popen[bytes]":
        if self._child is not None and self._child.poll() is None:
            return self._child
        self.close()
        content = self._files.read("config.yaml")
        if content is None:
            raise ConfigError(f"{self._files.location} has no config.yaml, which names the data and the task")
        self._config.write_bytes(content)
        self._child = subprocess.Popen(
            [sys.executable, "-m", _MODULE, str(self._config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)},
            process_group=0,
        )
        CHILD_GROUPS.add(self._child.pid)
        return self._child

    def _exchange(self, child: "subprocess.Popen[bytes]", request: bytes, end: float) -> dict[str, Any]:
        assert child.stdin is not None
        assert child.stdout is not None
        with suppress(BrokenPipeError):
            child.stdin.write(request)
            child.stdin.flush()
        found = b""
        while not found.endswith(b"\n"):
            left = end - time.monotonic()
            if left <= 0 or not select.select([child.stdout], [], [], left)[0]:
                self.close()
                raise JudgeError("judging took too long and was ended; the run's data may be large: try once more")
            if not (more := os.read(child.stdout.fileno(), 1 << 20)):
                self.close()
                raise JudgeError("the process that judges has ended; `dojang judge selftest` checks this machine")
            found += more
        reply: dict[str, Any] = json.loads(found)
        return reply


def same_verdict(outcome: str | None, reward: float | None, verdict: dict[str, Any]) -> bool:
    """Reports whether a verdict has the outcome and reward that were recorded."""
    again = verdict["reward"]
    if reward is None or again is None:
        return outcome == verdict["outcome"] and reward is again
    return outcome == verdict["outcome"] and math.isclose(reward, again, rel_tol=1e-6, abs_tol=1e-9)
