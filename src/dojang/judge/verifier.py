"""Runs a task's verifier beside the files that an agent left: rewards that the agent cannot forge.

    agent's sandbox      all processes are dead; its files are copied
    verifier's sandbox   new: copied files, the task's tests, an interpreter and a reward file that no agent ever saw
    untrusted sandboxes  one for each run of the agent's code that the verifier asks for; they see only the files

An agent's code never runs in the sandbox in which the reward is decided.
"""

import json
import math
import select
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from dojang.judge.host_capabilities import HostCapabilities
from dojang.judge.sandbox.file_tree import FileTree
from dojang.judge.sandbox.shell_jail import LOGS, TESTS
from dojang.judge.shell_sandbox import FilesTooLarge, ShellLimits, ShellOutput, ShellSandbox
from dojang.judge.supervised_worker import WorkerFailed

__all__ = ["Verifier", "VerifierRun", "VerifierVerdict"]

_SHOWN = 2000
_MOST_RUNS, _MOST_AT_ONCE = 1000, 8
_PYTEST = (
    *("PYTEST_DISABLE_PLUGIN_AUTOLOAD=1", "python3", "-m", "pytest", "-q", "-p", "no:cacheprovider"),
    *("--rootdir", TESTS, "-c", "/dev/null", TESTS),
)


@dataclass(frozen=True, slots=True)
class VerifierRun:
    """A verifier and the files it judges."""

    tests: FileTree
    """The task's tests. `test.sh` writes a reward file; without one, pytest runs them and its exit code decides."""
    files: FileTree
    """The files that the agent left."""
    workdir: str
    limits: ShellLimits
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_script(self) -> bool:
        return any(entry["path"] == "test.sh" for entry in self.tests.entries)


@dataclass(frozen=True, slots=True)
class VerifierVerdict:
    """A verifier's result."""

    reward: float
    parts: Mapping[str, float] = field(default_factory=dict)
    """Further rewards of a reward.json, by name."""
    detail: str = ""


class Verifier:
    """One run of a verifier. May be closed from another thread."""

    def __init__(self, host: HostCapabilities, run: VerifierRun) -> None:
        self._host = host
        self._run = run
        self._lock = threading.Lock()
        self._sandbox: ShellSandbox | None = None
        self._closed = False

    def verify(self) -> VerifierVerdict:
        """Run the verifier. One that fails or writes no reward is a reward of 0. Raises WorkerFailed if it could not
        run."""
        run = self._run
        sandbox = ShellSandbox(self._host, "verifier", run.workdir, run.limits)
        runs = _UntrustedRuns(self._host, run, time.monotonic() + run.limits.wall_s)
        try:
            with self._lock:
                self._sandbox = sandbox
                if self._closed:
                    raise WorkerFailed("the verifier was closed")
            ended = _run_tests(sandbox, run, runs)
            runs.close()
            if run.is_script:
                return _written_reward(sandbox, ended)
        finally:
            with self._lock:
                self._sandbox = None
            runs.close()
            sandbox.close()
        return VerifierVerdict(float(_all_passed(ended)), detail=_describe(ended))

    def close(self) -> None:
        """End the run, wherever it is."""
        with self._lock:
            self._closed = True
            if self._sandbox is not None:
                self._sandbox.disconnect()


def _run_tests(sandbox: ShellSandbox, run: VerifierRun, runs: "_UntrustedRuns") -> ShellOutput:
    """Run the tests; serve the runs of the agent's code that they ask for."""
    sandbox.put(run.workdir, run.files)
    sandbox.put(TESTS, run.tests)
    sandbox.ask({"verb": "listen"})
    with _receive_listener(sandbox.channel) as listener:
        argv = ("/bin/bash", f"{TESTS}/test.sh") if run.is_script else ("/usr/bin/env", *_PYTEST)
        sandbox.start(argv, _SHOWN, variables=run.variables)
        while sandbox.channel not in select.select([sandbox.channel, listener], [], [])[0]:
            runs.accept(listener)
    return sandbox.finish(_SHOWN)


class _UntrustedRuns:
    """Sandboxes in which the agent's code runs for a verifier, one for each of its connections."""

    def __init__(self, host: HostCapabilities, run: VerifierRun, deadline: float) -> None:
        self._host = host
        self._run = run
        self._deadline = deadline
        self._lock = threading.Lock()
        self._free = threading.Semaphore(_MOST_AT_ONCE)
        self._sandboxes: set[ShellSandbox] = set()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._failure = ""

    def accept(self, listener: socket.socket) -> None:
        """Serve the next connection in a new sandbox; close it if an earlier one could not be served."""
        connection, _ = listener.accept()
        if self._failure or len(self._threads) >= _MOST_RUNS:
            connection.close()
            return
        thread = threading.Thread(target=self._serve, args=(connection,), daemon=True, name="untrusted")
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """End all sandboxes. Raises WorkerFailed if one failed: what the verifier then found proves nothing."""
        with self._lock:
            self._closed = True
            for each in self._sandboxes:
                each.disconnect()
        for thread in self._threads:
            thread.join()
        if self._failure:
            failure, self._failure = self._failure, ""
            raise WorkerFailed(failure)

    def _serve(self, connection: socket.socket) -> None:
        sandbox = None
        limits = self._run.limits
        with connection, self._free:
            try:
                if self._closed:
                    return
                sandbox = ShellSandbox(self._host, "untrusted", self._run.workdir, limits, connection.fileno())
                with self._lock:
                    self._sandboxes.add(sandbox)
                    if self._closed:
                        return
                left = max(1.0, self._deadline - time.monotonic())
                sandbox.channel.settimeout(left + 300)
                sandbox.ask({"verb": "serve_untrusted", "limits": limits.group(left), "tree_limits": limits.tree()})
            except Exception as error:
                with self._lock:
                    if not self._closed:
                        self._failure = f"the agent's code could not be run for the verifier: {error}"
            finally:
                if sandbox is not None:
                    with self._lock:
                        self._sandboxes.discard(sandbox)
                    sandbox.close()


def _receive_listener(channel: socket.socket) -> socket.socket:
    try:
        _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
    except OSError as error:
        raise WorkerFailed(f"the verifier's sandbox was lost: {error}") from error
    if len(descriptors) != 1:
        raise WorkerFailed("the verifier's sandbox sent no socket")
    return socket.socket(fileno=descriptors[0])


def _written_reward(sandbox: ShellSandbox, ended: ShellOutput) -> VerifierVerdict:
    """Read the reward file: reward.json, a number or numbers by name, or else reward.txt, a number."""
    if ended.killed:
        return VerifierVerdict(0.0, detail=_describe(ended))
    try:
        logs = sandbox.get(LOGS)
    except FilesTooLarge as error:
        return VerifierVerdict(0.0, detail=f"the verifier's logs cannot be read: {error}")
    files = [entry["path"] for entry in logs.entries if entry["kind"] == "file"]
    found = dict(zip(files, logs.contents, strict=True))
    try:
        if "reward.json" in found:
            reward, parts = _parse(found["reward.json"])
        elif "reward.txt" in found:
            reward, parts = float(found["reward.txt"]), {}
        else:
            return VerifierVerdict(0.0, detail=f"the verifier wrote no reward; {_describe(ended)}")
    except ValueError as error:
        return VerifierVerdict(0.0, detail=f"the verifier's reward cannot be read: {error}")
    if not math.isfinite(reward):
        return VerifierVerdict(0.0, detail=f"the verifier's reward is {reward}")
    return VerifierVerdict(reward, parts, _describe(ended))


def _parse(text: bytes) -> tuple[float, dict[str, float]]:
    """Read a reward.json: `reward` of an object, or else the mean of its numbers."""
    found = json.loads(text)
    numbers = found if isinstance(found, dict) else {"reward": found}
    if not numbers or not all(isinstance(each, int | float) for each in numbers.values()):
        raise ValueError("reward.json must have a number, or an object of numbers")
    values = {str(name): float(value) for name, value in numbers.items()}
    reward = values.pop("reward", None)
    if not all(map(math.isfinite, values.values())):
        raise ValueError("reward.json has numbers that are not finite")
    return (sum(values.values()) / len(values) if reward is None else reward), values


def _all_passed(ended: ShellOutput) -> bool:
    """Whether pytest ran tests and all passed: its exit code is 0 for skipped ones as well."""
    summary = (ended.text.strip().splitlines() or [""])[-1]
    return ended.status == 0 and not ended.killed and " passed" in summary and " skipped" not in summary


def _describe(ended: ShellOutput) -> str:
    how = ended.killed or (f"exit code {ended.status}" if ended.status >= 0 else f"signal {-ended.status}")
    return f"verifier: {how}" + (f"\n{ended.text.strip()}" if ended.text.strip() else "")
