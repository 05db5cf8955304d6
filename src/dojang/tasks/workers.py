"""Processes that answer questions one at a time, and are killed when they take too long.

For verifiers that may hang or crash inside other people's code, where no thread could be stopped. A process writes a
line when it is ready; then it reads lines of JSON and answers each with one. Each has a thread here that waits for it,
so answers can be awaited from any event loop or thread. Processes start when they are first needed and end with the
program.
"""

import asyncio
import json
import os
import queue
import select
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

__all__ = ["WorkerFailure", "Workers"]

Question = tuple[Any, "Future[Any]"]
_STARTING_S = 60.0
"""Until a process is ready, which has to import what it needs."""


class WorkerFailure(Exception):
    """There is no answer; says why."""


class Workers:
    """So many processes of a Python module."""

    def __init__(self, module: str, *, count: int = 0, timeout_s: float) -> None:
        """`count` 0 means one for each core."""
        self._module, self._timeout_s = module, timeout_s
        self._count = count or len(os.sched_getaffinity(0))
        self._questions: queue.SimpleQueue[Question | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._waiting = 0
        weakref.finalize(self, _end, self._questions, self._count)

    async def ask(self, question: Any) -> Any:
        """The answer; WorkerFailure if the process hangs, crashes or cannot be started."""
        answer: Future[Any] = Future()
        with self._lock:
            self._waiting += 1
            if self._threads < min(self._count, self._waiting):
                self._threads += 1
                arguments = (self._module, self._timeout_s, self._questions)
                threading.Thread(target=_serve, args=arguments, name=f"asks {self._module}", daemon=True).start()
        self._questions.put((question, answer))
        try:
            return await asyncio.wrap_future(answer)
        finally:
            with self._lock:
                self._waiting -= 1


def _end(questions: "queue.SimpleQueue[Question | None]", count: int) -> None:
    for _ in range(count):
        questions.put(None)


def _serve(module: str, timeout_s: float, questions: "queue.SimpleQueue[Question | None]") -> None:
    """What a thread does: one process after the other, one question after the other."""
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
            answer.set_exception(error if isinstance(error, WorkerFailure) else WorkerFailure(repr(error)))
        else:
            answer.set_result(reply)
    if worker is not None:
        worker.close()


class _Worker:
    def __init__(self, module: str) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the run, which ends this
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        os.set_blocking(self._out.fileno(), False)
        self._unread = b""
        self._ready = False

    def ask(self, question: Any, timeout_s: float) -> Any:
        with suppress(BrokenPipeError):  # reading will tell
            self._in.write(json.dumps(question).encode() + b"\n")
            self._in.flush()
        if not self._ready:
            self._line(_STARTING_S)
            self._ready = True
        return json.loads(self._line(timeout_s))

    def _line(self, timeout_s: float) -> bytes:
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._out], [], [], left)[0]:
                raise WorkerFailure(f"it took longer than timeout_s={timeout_s:g}")
            if not (more := self._out.read()):
                code = self._process.wait()
                raise WorkerFailure(f"the process ended with {code}")
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._in, self._out):
            with suppress(OSError):
                pipe.close()
