"""Worker processes that answer one request at a time, and are killed at a time limit.

For verifiers that may hang or crash in library code, where a thread could not be stopped. A process writes READY when
ready; then it reads lines of {number, ask} and answers each with {number, answer}. Other output is ignored. A thread
waits for each process, so answers can be awaited from any event loop or thread. Processes start on demand and end with
the program.
"""

import asyncio
import json
import os
import queue
import select
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

__all__ = ["READY", "WorkerFailure", "WorkerPool"]

READY = "dojang-worker-ready"
Question = tuple[Any, "Future[Any]"]
_STARTING_S = 60.0
"""Time limit in seconds for the start of a process, including its imports."""


class WorkerFailure(Exception):
    """The worker gave no answer; the message has the reason."""


class WorkerPool:
    """A pool of processes of a Python module. A copy in another process has separate processes."""

    def __init__(self, module: str, *, count: int = 0, timeout_s: float) -> None:
        """`count` is the number of processes; 0: one per core."""
        self._module, self._timeout_s, self._requested = module, timeout_s, count
        self._reset()

    def _reset(self) -> None:
        self._count = self._requested or len(os.sched_getaffinity(0))
        self._questions: queue.SimpleQueue[Question | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._waiting = 0
        weakref.finalize(self, _end, self._questions, self._count)
        _POOLS.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(WorkerPool, count=self._requested, timeout_s=self._timeout_s), (self._module,)

    async def ask(self, question: Any) -> Any:
        """Returns the answer. Raises WorkerFailure if the process hangs, crashes or cannot start."""
        answer: Future[Any] = Future()
        with self._lock:
            self._waiting += 1
            if self._threads < min(self._count, self._waiting):
                self._threads += 1
                arguments = (self._module, self._timeout_s, self._questions)
                threading.Thread(target=_serve, args=arguments, name=f"asks {self._module}", daemon=True).start()
        self._questions.put((question, answer))
        try:
            found = await asyncio.wrap_future(answer)
        finally:
            with self._lock:
                self._waiting -= 1
        if isinstance(found, _Failed):
            raise WorkerFailure(found.why)
        return found


_POOLS: "weakref.WeakSet[WorkerPool]" = weakref.WeakSet()


def _reset_after_fork() -> None:
    """Resets all pools in a forked child, which has none of their threads. It has a single thread yet, so no race."""
    for pool in list(_POOLS):
        pool._reset()


os.register_at_fork(after_in_child=_reset_after_fork)


def _end(questions: "queue.SimpleQueue[Question | None]", count: int) -> None:
    for _ in range(count):
        questions.put(None)


def _serve(module: str, timeout_s: float, questions: "queue.SimpleQueue[Question | None]") -> None:
    """Serves questions with one process, replacing it after a failure. Runs in a thread."""
    worker: _Worker | None = None
    while (taken := questions.get()) is not None:
        question, answer = taken
        if not answer.set_running_or_notify_cancel():
            continue
        try:
            worker = worker or _Worker(module)
            reply = worker.ask(question, timeout_s)
        except Exception as error:
            if worker is not None:
                worker.close()
            worker = None
            answer.set_result(_Failed(str(error) if isinstance(error, WorkerFailure) else repr(error)))
        else:
            answer.set_result(reply)
    if worker is not None:
        worker.close()


@dataclass(frozen=True, slots=True)
class _Failed:
    """Stands for an answer. An exception would reference its caller by its traceback, and so the WorkerPool; the thread
    that holds its future until the next question would then keep the pool and its processes alive."""

    why: str


class _Worker:
    def __init__(self, module: str) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": "1"}
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],  # -P: do not import from the current directory
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=environment,
            start_new_session=True,  # Ctrl-C goes to the run, which ends this process
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        for pipe in (self._in, self._out):
            os.set_blocking(pipe.fileno(), False)
        self._unread = b""
        self._number = 0

    def ask(self, question: Any, timeout_s: float) -> Any:
        if not self._number:
            while self._line(time.monotonic() + _STARTING_S, _STARTING_S).decode(errors="replace") != READY:
                pass
        self._number += 1
        deadline = time.monotonic() + timeout_s
        self._write(json.dumps({"number": self._number, "ask": question}).encode() + b"\n", deadline, timeout_s)
        while True:
            with suppress(ValueError):  # ignore other output
                found = json.loads(self._line(deadline, timeout_s))
                if isinstance(found, dict) and found.get("number") == self._number:
                    return found["answer"]

    def _write(self, line: bytes, deadline: float, timeout_s: float) -> None:
        while line:
            self._wait_for(self._in, deadline, timeout_s)
            try:
                line = line[os.write(self._in.fileno(), line) :]
            except BrokenPipeError:
                raise self._failure() from None

    def _line(self, deadline: float, timeout_s: float) -> bytes:
        while b"\n" not in self._unread:
            self._wait_for(self._out, deadline, timeout_s)
            if not (more := os.read(self._out.fileno(), 1 << 16)):
                raise self._failure()
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _wait_for(self, pipe: IO[bytes], deadline: float, timeout_s: float) -> None:
        readable, writable = ([], [pipe]) if pipe is self._in else ([pipe], [])
        if not any(select.select(readable, writable, [], max(0.0, deadline - time.monotonic()))):
            raise WorkerFailure(f"it took longer than timeout_s={timeout_s:g}")

    def _failure(self) -> WorkerFailure:
        """Returns the failure of a process that ended or closed its pipe."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        self._process.kill()
        code = self._process.wait()
        self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - 2000))
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return WorkerFailure(f"the process ended with {code}" + (f": {lines[-1][:300]}" if lines else ""))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._in, self._out, self._said):
            with suppress(OSError):
                pipe.close()
