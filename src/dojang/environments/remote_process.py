"""Environments of other packages, in child processes with another interpreter: their dependencies conflict with ours.

A few processes serve many episodes each (remote_server.py). A process that crashed or hangs is ended; its episodes fail
and are not rewarded, and the next episode starts a new one. No process outlives the trainer, even one that is killed.
"""

import itertools
import json
import os
import select
import signal
import subprocess
import threading
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from dojang.core.errors import ConfigError
from dojang.environments.base import Environment, Messages, Reply, Step, StepResult
from dojang.environments.other_interpreter import OtherInterpreter
from dojang.types import Message, Problem

__all__ = ["ProcessPool", "RemoteEnvironment", "RemoteFailed", "check_package", "process_pool"]

_MOST_LINE = 64 << 20


class RemoteFailed(Exception):
    """The process crashed or hung, or its environment raised."""


class _Process:
    """One process. Calls of its episodes take turns."""

    def __init__(self, python: str, adapter: str) -> None:
        self.episodes = 0
        self._lock = threading.Lock()
        self._ids = itertools.count()
        self._buffer = b""
        try:
            self._server = OtherInterpreter(python, "remote_server.py", adapter)
        except OSError as error:
            raise RemoteFailed(f"{python} could not be started: {error.strerror}") from error

    @property
    def alive(self) -> bool:
        return self._server.alive

    def call(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Sends a request and returns its answer. Ends the process if none comes in time."""
        with self._lock:
            number = next(self._ids)
            try:
                self._server.send(json.dumps({"id": number, **request}).encode())
                answer: dict[str, Any] = json.loads(self._line(time.monotonic() + timeout_s))
            except (OSError, ValueError, TypeError) as error:  # TypeError: a value that JSON cannot hold
                self.end()
                raise RemoteFailed(self._why(error)) from error
        if "error" in answer:
            raise RemoteFailed(answer["error"])
        if answer.get("id") != number:
            self.end()
            raise RemoteFailed(f"an answer to another request came: {answer.get('id')} instead of {number}")
        return answer

    def end(self) -> None:
        """Kills the process with all it started."""
        with suppress(OSError):
            os.killpg(self._server.process.pid, signal.SIGKILL)
        self._server.process.wait()

    def close(self) -> None:
        """Ends the process and frees its pipes."""
        self.end()
        self._server.join_errors()
        with self._lock:  # a call that still reads has failed by then
            self._server.close_pipes()

    def _line(self, deadline: float) -> bytes:
        assert self._server.process.stdout is not None
        file = self._server.process.stdout.fileno()
        poller = select.poll()
        poller.register(file, select.POLLIN)
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not poller.poll(1000 * left):
                raise TimeoutError("no answer in time")
            piece = os.read(file, 1 << 16)
            if not piece or len(self._buffer) > _MOST_LINE:
                raise ConnectionError("it ended")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _why(self, error: Exception) -> str:
        return f"the environment's process failed: {error}{self._server.last_words()}"


class ProcessPool:
    """Several processes of one adapter, started when they are needed."""

    def __init__(self, python: str, adapter: str, size: int) -> None:
        self._python = python
        self._adapter = adapter
        self._slots: list[_Process | None] = [None] * size
        self._lock = threading.Lock()
        self._numbers = itertools.count()

    def start(self, request: Mapping[str, Any], timeout_s: float) -> tuple[_Process, int, dict[str, Any]]:
        """Starts an episode in the process with the fewest; returns that, the episode's number and first answer."""
        with self._lock:
            process = self._least_busy()
            process.episodes += 1
            number = next(self._numbers)
        try:
            return process, number, process.call({"do": "reset", "episode": number, **request}, timeout_s)
        except BaseException:
            self.release(process)
            raise

    def release(self, process: _Process) -> None:
        """Counts an episode that ended."""
        with self._lock:
            process.episodes -= 1

    def _least_busy(self) -> _Process:
        for at, process in enumerate(self._slots):
            if process is not None and not process.alive:
                process.close()
                self._slots[at] = None
        busy = [each for each in self._slots if each is not None]
        idle = next((each for each in busy if each.episodes == 0), None)
        if idle is None and None in self._slots:
            idle = self._slots[self._slots.index(None)] = _Process(self._python, self._adapter)
        return idle or min(busy, key=lambda each: each.episodes)

    def close(self) -> None:
        """Ends all processes."""
        with self._lock:
            for process in filter(None, self._slots):
                process.close()
            self._slots = [None] * len(self._slots)


_shared_pool = cache(ProcessPool)
_SHARED_LOCK = threading.Lock()


def process_pool(python: str, adapter: str, size: int) -> ProcessPool:
    """Returns the pool that all episodes of these settings share; it ends with this process."""
    with _SHARED_LOCK:  # constructors of environments run in threads
        return _shared_pool(python, adapter, size)


class RemoteEnvironment(Environment):
    """An episode in another process. The problem's seed selects the instance (data.name=episodes)."""

    def __init__(self, pool: ProcessPool, options: Mapping[str, Any], timeout_s: float) -> None:
        self._pool = pool
        self._options = options
        self._timeout_s = timeout_s
        self._process: _Process | None = None
        self._episode = -1

    def reset(self, problem: Problem) -> Messages:
        request = {"options": dict(self._options), "problem": _described(problem)}
        self._process, self._episode, answer = self._pool.start(request, self._timeout_s)
        return _messages(answer)

    def step(self, reply: Reply) -> StepResult:
        answer = self._call("step", text=reply.text)
        done, solved = bool(answer.get("done")), answer.get("solved")
        return Step(
            messages=() if done else _messages(answer),
            reward=float(answer.get("reward", 0.0)),
            done=done,
            solved=None if solved is None else bool(solved),
            parts={name: float(value) for name, value in answer.get("parts", {}).items()},
            detail=str(answer.get("detail", "")),
        )

    def close(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            self._pool.release(process)
            if process.alive:
                process.call({"do": "close", "episode": self._episode}, self._timeout_s)

    def _call(self, action: str, **fields: object) -> dict[str, Any]:
        assert self._process is not None
        return self._process.call({"do": action, "episode": self._episode, **fields}, self._timeout_s)


def _described(problem: Problem) -> dict[str, Any]:
    """A problem as JSON. The seed of one that has none follows from its id."""
    seed = problem.columns.get("seed")
    return {
        "id": problem.id,
        "seed": seed if isinstance(seed, int) else zlib.crc32(problem.id.encode("utf-8", "surrogatepass")),
        "held_out": bool(problem.columns.get("held_out")),
        "messages": [{"role": each.role, "content": each.content} for each in problem.messages],
        "reference": problem.reference,
    }


def check_package(python: str, program: str, package: str, setting: tuple[str, str]) -> None:
    """Raises ConfigError unless the interpreter has the package, which `program` imports, and knows the value of the
    setting: then the program prints nothing."""
    key, value = setting
    try:
        found = subprocess.run([python, "-I", "-c", program, value], capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"workflow.python={python} does not run: {error}") from error
    if found.returncode:
        said = found.stderr.strip().rpartition("\n")[2]
        raise ConfigError(
            f"workflow.python={python} cannot use {package.partition('=')[0]} ({said}); install it into a virtual "
            f"environment (python -m venv .venv-games && .venv-games/bin/pip install {package}) and set "
            "workflow.python=.venv-games/bin/python"
        )
    if known := found.stdout.strip():
        raise ConfigError(f"{key}={value} does not exist in {package}; {known[:2000]}")


def _messages(answer: Mapping[str, Any]) -> list[Message]:
    return [Message(each["role"], str(each["content"])) for each in answer["messages"]]
