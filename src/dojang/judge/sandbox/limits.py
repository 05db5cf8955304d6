"""Resource limits of judged programs: waits for a process and kills it when it exceeds CPU time, idle time or memory.

The limit is CPU time, read from the process's CPU clock: on a busy machine a program takes longer but uses no more
CPU time. Idle time catches programs that sleep. It is wall time minus CPU time minus the time spent waiting for a
core (run delay), which is the machine's fault.

Rlimits (stack, address space, file size, processes) are set in start_process.py and run_test.py.
"""

import os
import resource
import select
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

__all__ = ["Interrupted", "LimitsWatcher", "PoolDisconnected", "ProcessEnd", "ResourceLimits", "Usage"]

_FIRST_POLL_S, _MAX_POLL_S = 0.004, 0.025
_POLLRDHUP = 0x2000
_PAGE = resource.getpagesize()
_WALL_FACTOR = 100
"""Upper bound of wall time, as a multiple of CPU and idle limit together, however long threads wait for cores."""
_NO_PROC_FACTOR = 10
"""Factor on the idle limit where /proc is missing, because idle time and run delay then look the same."""


class Interrupted(Exception):
    """The worker received a signal, and the program perhaps too: how the program ended proves nothing."""


class PoolDisconnected(Exception):
    """The pool closed its connection."""


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """Limits of one process, in seconds and bytes."""

    cpu_s: float
    idle_s: float
    memory: int


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How a process ended, and the resources it used."""

    status: int
    """Status as waitpid returns it."""
    cpu_s: float
    wall_s: float
    memory: int
    killed: str = ""
    """Limit it was killed for: cpu, idle or memory; "stopped" if it was no longer needed."""
    waited_s: float = 0.0
    """Run delay (seconds waiting for a core) when it was killed for CPU time."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources that a process had used at a moment; limits of what follows count from there."""

    at: float
    cpu_s: float
    waited_s: float


class LimitsWatcher:
    """Enforces the limits of processes for one worker."""

    def __init__(self, proc: int | None, control: int, tick: Callable[[], None] = lambda: None) -> None:
        self._proc = proc
        self._control = control
        self._tick = tick
        """Called regularly while waiting."""
        self._signal = ""

    def wait(self, pid: int, limits: ResourceLimits, *, until: int | None = None) -> ProcessEnd:
        """Wait until `pid` ends, or until the process `until` ends and then kill `pid`."""
        started = time.monotonic()
        handles = [os.pidfd_open(each) for each in (pid, until) if each is not None]
        try:
            try:
                killed = self._wait(pid, limits, until, handles, started)
            except PoolDisconnected:
                _kill(handles[0])
                raise
            waited = self._run_delay(pid) if killed == "cpu" else 0.0
            if killed:
                _kill(handles[0])
        finally:
            for handle in handles:
                os.close(handle)
        _, status, usage = os.wait4(pid, 0)
        if self._signal:
            raise Interrupted(self._signal)
        if killed == "stopped" and status != signal.SIGKILL:
            killed = ""  # it had already ended
        wall = time.monotonic() - started
        return ProcessEnd(status, usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss * 1024, killed, waited)

    def usage(self, pid: int) -> Usage:
        """Resources used so far."""
        return Usage(time.monotonic(), _cpu(pid), self._run_delay(pid))

    def wait_for(self, pid: int, file: int, limits: ResourceLimits, since: Usage) -> str:
        """Wait until a running process has written to `file` or closed it. Returns the limit it exceeded before: cpu,
        idle or memory."""
        poller = select.poll()
        poller.register(file, select.POLLIN)
        poller.register(self._control, _POLLRDHUP)
        pause = _FIRST_POLL_S
        while True:
            used = _cpu(pid) - since.cpu_s
            ready = {each for each, _ in poller.poll(max(1, 1000 * min(pause, limits.cpu_s - used)))}
            if self._control in ready:
                raise PoolDisconnected
            if ready:
                return ""
            if used >= limits.cpu_s:
                return "cpu"
            if self._memory(pid) > limits.memory:
                return "memory"
            wall = time.monotonic() - since.at
            busy = used + self._run_delay(pid) - since.waited_s
            most = limits.idle_s * (_NO_PROC_FACTOR if self._proc is None else 1)
            if wall - busy > most or wall > _WALL_FACTOR * (limits.cpu_s + limits.idle_s):
                return "idle"
            self._tick()
            pause = min(2 * pause, _MAX_POLL_S)

    def record_signals(self) -> None:
        """Record termination signals instead of dying: the pool ends its workers in order.

        A service manager signals every process at once, judged programs included, and those die of it.
        """
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, self._record)

    def _record(self, number: int, _: object) -> None:
        self._signal = signal.Signals(number).name

    def _wait(self, pid: int, limits: ResourceLimits, until: int | None, handles: Sequence[int], started: float) -> str:
        poller = select.poll()
        for handle in handles:
            poller.register(handle, select.POLLIN)
        poller.register(self._control, _POLLRDHUP)
        pause = _FIRST_POLL_S
        while True:
            used = _cpu(pid)
            left = limits.cpu_s - used
            if left <= 0:
                return "cpu"
            ended = {handle for handle, _ in poller.poll(max(1, 1000 * min(pause, left)))}
            if self._control in ended:
                raise PoolDisconnected
            if ended:
                return "" if handles[0] in ended else "stopped"
            if self._memory(pid) > limits.memory:
                return "memory"
            wall = time.monotonic() - started
            if wall > _WALL_FACTOR * (limits.cpu_s + limits.idle_s):
                return "idle"
            if self._is_idle([pid] if until is None else [pid, until], wall, limits.idle_s):
                return "idle"
            self._tick()
            pause = min(2 * pause, _MAX_POLL_S)

    def _memory(self, pid: int) -> int:
        words = self._read(f"{pid}/statm").split()
        return int(words[1]) * _PAGE if len(words) > 1 else 0

    def _is_idle(self, pids: Sequence[int], wall: float, most: float) -> bool:
        """Whether the processes together were idle for more than `most` seconds."""
        if wall <= most:
            return False
        busy = sum(map(_cpu, pids))
        if self._proc is None:
            return wall - busy > _NO_PROC_FACTOR * most
        return wall - busy - sum(map(self._run_delay, pids)) > most

    def _run_delay(self, pid: int) -> float:
        """Seconds that the threads of a process spent waiting for a core."""
        if self._proc is None:
            return 0.0
        try:
            tasks = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._proc)
        except OSError:
            return 0.0
        try:
            lines = [self._read(f"{pid}/task/{task}/schedstat").split() for task in os.listdir(tasks)]
        finally:
            os.close(tasks)
        return sum(int(line[1]) for line in lines if len(line) > 1) / 1e9

    def _read(self, path: str) -> str:
        if self._proc is None:
            return ""
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
        except OSError:
            return ""
        try:
            return os.read(file, 256).decode()
        except OSError:
            return ""
        finally:
            os.close(file)


def _kill(handle: int) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, signal.SIGKILL)


def _cpu(pid: int) -> float:
    """CPU seconds used so far by all threads of a process; 0 if it has ended."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # the kernel's clock id for the CPU time of a process
    except OSError:
        return 0.0
