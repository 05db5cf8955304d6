"""Worker processes on the trainer's machine: started, restarted when they end, and ended with the trainer.

A worker ends by itself when its parent process is gone (core/child_process.py), so a killed trainer leaves none behind.
"""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from dojang.core.child_process import PARENT_VARIABLE
from dojang.core.interrupt import CHILD_GROUPS
from dojang.core.run_dir import disk_errors
from dojang.rollout_service.client import TOKEN_VARIABLE
from dojang.rollout_service.served_workers import OnEnd
from dojang.rollout_service.worker import worker_name

__all__ = ["LocalProcesses", "WorkerProcess"]

_POLL_S = 0.1
_QUIET_S = 60.0
"""Seconds of work after which an end is no failure of the start."""
_DELAY_S = 1.0
"""Seconds before a worker that ended is started again."""
_LOG_TAIL = 2000


class WorkerProcess:
    """One worker process, started again when it ends too early."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, on_end: Callable[[int, str], bool]
    ) -> None:
        """`on_end` is called with the process id and the reason when the process ends; it returns whether another one
        is started."""
        self._command, self._environment, self._log, self._on_end = command, environment, log, on_end
        self._process: subprocess.Popen[bytes] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Process id; None if no process runs."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Starts the process, and watches it."""
        self._launch()
        self._task = asyncio.create_task(self._watch())

    async def close(self, limit_s: float) -> None:
        """Tells the process to end, and waits; kills it and its children when the time is over."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._process is None:
            return
        with suppress(OSError):
            self._process.terminate()
        deadline = time.monotonic() + limit_s
        while self._process.poll() is None and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_S)
        self._reap()

    def _launch(self) -> None:
        with disk_errors(self._log):
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **self._environment, PARENT_VARIABLE: str(os.getpid())},
                    process_group=0,  # a Ctrl-C in the terminal is for the trainer
                )
        CHILD_GROUPS.add(self._process.pid)

    async def _watch(self) -> None:
        while self._process is not None:
            started = time.monotonic()
            while (code := self._process.poll()) is None:
                await asyncio.sleep(_POLL_S)
            pid = self._process.pid
            self._reap()
            if not self._on_end(pid, f"it ended with {_ending(code)}{self._tail()}"):
                return
            await asyncio.sleep(0 if time.monotonic() - started > _QUIET_S else _DELAY_S)
            self._launch()

    def _reap(self) -> None:
        """Kills what is left of the process group, such as processes of its engine."""
        assert self._process is not None
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        CHILD_GROUPS.discard(self._process.pid)
        self._process = None

    def _tail(self) -> str:
        """End of the log, for the error message."""
        with suppress(OSError):
            text = self._log.read_bytes()[-_LOG_TAIL:].decode(errors="replace").strip()
            return f"; the end of {self._log}:\n{text}" if text else ""
        return ""


class LocalProcesses:
    """The StartedWorkers of this machine."""

    host = "127.0.0.1"

    def __init__(
        self,
        command: Callable[[str], Sequence[str]],
        environments: Sequence[Mapping[str, str]] = (),
        log: Callable[[int], Path] = lambda number: Path(f"worker-{number}.log"),
    ) -> None:
        """`command` returns the command of a worker that joins a URL; `environments` has the environment variables of
        each worker, one process per entry; `log` returns a worker's log file."""
        self._command, self._environments, self._log = command, environments, log
        self._workers: list[WorkerProcess] = []

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    def start(self, url: str, token: str, on_end: OnEnd) -> None:
        command = self._command(url)
        for number, environment in enumerate(self._environments):
            variables = {**environment, TOKEN_VARIABLE: token}
            worker = WorkerProcess(command, variables, self._log(number), partial(_on_end_of, on_end))
            self._workers.append(worker)
            worker.start()

    def describe(self) -> str:
        return ""

    async def close(self, limit_s: float) -> None:
        await asyncio.gather(*(worker.close(limit_s) for worker in self._workers))


def _on_end_of(on_end: OnEnd, pid: int, reason: str) -> bool:
    return on_end(worker_name(pid), reason)


def _ending(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
