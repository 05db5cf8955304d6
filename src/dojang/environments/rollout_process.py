"""Rollouts of other packages, in a child process with another interpreter, many at a time (rollout_server.py).

A process that crashed, or that answers nothing, is ended with all it started: its rollouts fail and are not rewarded,
and the next rollout starts a new process. No process outlives the trainer, even one that is killed.
"""

import asyncio
import itertools
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

from dojang.core.errors import ConfigError
from dojang.environments.other_interpreter import OtherInterpreter

__all__ = [
    "START_S",
    "RolloutFailed",
    "RolloutProcess",
    "RolloutProcesses",
    "close_rollout_processes",
    "rollout_processes",
    "trial_process",
]

_END_S = 15.0
"""Time for the process to kill all that it started."""
START_S = 300.0
"""Time for the process to import its package, and to start what its rollouts share."""
_GRACE_S = 20.0
"""Time for the answer that a rollout took too long. After that, the process hangs."""


class RolloutFailed(Exception):
    """The process crashed or hung, or the rollout failed; `kind` is that of rollout_server.py."""

    def __init__(self, message: str, kind: str = "rollout") -> None:
        super().__init__(message)
        self.kind = kind


class RolloutProcess:
    """One process. Requests may overlap."""

    def __init__(self, python: str, adapter: str, options: Mapping[str, Any]) -> None:
        self._lock = threading.Lock()
        self._ids = itertools.count()
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._ended = ""
        try:
            self._server = OtherInterpreter(python, "rollout_server.py", adapter)
        except OSError as error:
            raise RolloutFailed(f"{python} could not be started: {error.strerror}", "interpreter") from error
        self._reader = threading.Thread(target=self._read_answers, daemon=True, name="rollout process")
        self._reader.start()
        self.started = self.ask("start", options=dict(options))
        """Answer to the start: further requests are answered after it."""

    @property
    def alive(self) -> bool:
        return not self._ended and self._server.alive

    def ask(self, action: str, **fields: object) -> "Future[dict[str, Any]]":
        """Sends a request; its answer comes with the future, or RolloutFailed."""
        return self._send(action, fields)[1]

    def _send(self, action: str, fields: Mapping[str, object]) -> "tuple[int, Future[dict[str, Any]]]":
        """Returns the number of the request, and the future of its answer."""
        answer: Future[dict[str, Any]] = Future()
        with self._lock:
            number = next(self._ids)
            if self._ended:
                answer.set_exception(RolloutFailed(self._ended))
                return number, answer
            self._waiting[number] = answer
            try:
                self._server.send(json.dumps({"id": number, "do": action, **fields}).encode())
            except (ValueError, TypeError) as error:  # a value that JSON cannot hold
                del self._waiting[number]
                answer.set_exception(RolloutFailed(f"a request cannot be sent: {error}"))
            except OSError:  # it has ended: the reader of its answers tells all that wait
                pass
        return number, answer

    async def call(self, action: str, timeout_s: float, **fields: object) -> dict[str, Any]:
        """Sends a request after the start; returns its answer. Raises RolloutFailed. Ends the process if it hangs."""
        await self._answer(self.started, START_S, f"did not start within {START_S:g} s")
        number, answer = self._send(action, {"timeout_s": timeout_s, **fields})
        try:
            return await self._answer(answer, timeout_s + _GRACE_S, f"answered nothing for {timeout_s + _GRACE_S:g} s")
        except asyncio.CancelledError:
            self.ask("cancel", of=number)
            raise

    async def _answer(self, answer: "Future[dict[str, Any]]", timeout_s: float, late: str) -> dict[str, Any]:
        waited = asyncio.wrap_future(answer)
        if (await asyncio.wait({waited}, timeout=timeout_s))[0]:  # leaves the answer to others that wait for it
            return waited.result()
        waited.add_done_callback(lambda each: each.cancelled() or each.exception())
        await asyncio.to_thread(self.close, f"the environment's process {late}, and was ended")
        raise RolloutFailed(self._ended, "timeout")

    def close(self, reason: str = "the environment's process was ended") -> None:
        """Ends the process with all it started, and frees its pipes."""
        self._fail(reason)
        process = self._server.process
        process.terminate()  # the guard: it kills the others
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._server.join_errors()
        if self._reader is not threading.current_thread():
            self._reader.join(5.0)
        self._server.close_pipes()

    def _fail(self, reason: str) -> None:
        with self._lock:
            self._ended = self._ended or reason
            waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            with suppress(Exception):  # the waiter has given up
                each.set_exception(RolloutFailed(self._ended))

    def _read_answers(self) -> None:
        assert self._server.process.stdout is not None
        with suppress(ValueError, OSError):  # closed meanwhile
            for line in self._server.process.stdout:
                found = json.loads(line)
                with self._lock:
                    answer = self._waiting.pop(found.pop("id"), None)
                if answer is None:
                    continue
                with suppress(Exception):  # the waiter has given up
                    if "error" in found:
                        answer.set_exception(RolloutFailed(found["error"], found.get("kind", "rollout")))
                    else:
                        answer.set_result(found)
        self._fail(f"the environment's process ended{self._server.last_words()}")


class RolloutProcesses:
    """A process that is started when it is needed, and anew after its end."""

    def __init__(self, python: str, adapter: str, options: Mapping[str, Any]) -> None:
        self._python, self._adapter, self._options = python, adapter, options
        self._process: RolloutProcess | None = None
        self._lock = threading.Lock()

    def get(self) -> RolloutProcess:
        """Returns the process. Raises RolloutFailed if the interpreter cannot be started."""
        with self._lock:
            if self._process is not None and not self._process.alive:
                ended, self._process = self._process, None
                threading.Thread(target=ended.close, daemon=True, name="ended rollout process").start()
            if self._process is None:
                self._process = RolloutProcess(self._python, self._adapter, self._options)
            return self._process

    def close(self) -> None:
        """Ends the process."""
        with self._lock:
            if self._process is not None:
                self._process.close()
            self._process = None


@contextmanager
def trial_process(
    python: str, adapter: str, options: str, failure: str, package: tuple[str, str]
) -> Iterator[RolloutProcess]:
    """Starts a process to try an environment before a run, and ends it. Raises ConfigError if the interpreter does not
    run or has no `package` (its name, and what to do then), or if a request fails: `failure` says what that means."""
    try:
        process = RolloutProcess(python, adapter, json.loads(options))
    except RolloutFailed as error:
        raise ConfigError(f"workflow.python={python} does not run: {error}") from error
    try:
        process.started.result(START_S)
        yield process
    except TimeoutError as error:
        raise ConfigError(f"{failure}: it did not start in {START_S:g} s") from error
    except RolloutFailed as error:
        if error.kind == "package":
            raise ConfigError(f"workflow.python={python} has no {package[0]} ({error}); {package[1]}") from error
        raise ConfigError(f"{failure}: {error}") from error
    finally:
        process.close()


_SHARED: dict[tuple[str, str, str], RolloutProcesses] = {}
_SHARED_LOCK = threading.Lock()


def rollout_processes(python: str, adapter: str, options: str) -> RolloutProcesses:
    """Returns the process that all rollouts of these settings share; `options` is JSON. It ends with this process."""
    key = (python, adapter, options)
    with _SHARED_LOCK:
        if key not in _SHARED:
            _SHARED[key] = RolloutProcesses(python, adapter, json.loads(options))
        return _SHARED[key]


def close_rollout_processes() -> None:
    """Ends the processes of all settings."""
    with _SHARED_LOCK:
        while _SHARED:
            _SHARED.popitem()[1].close()
