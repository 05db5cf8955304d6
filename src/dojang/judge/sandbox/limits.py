"""Waiting for a process while holding it to its limits.

Processor time decides, read from the process's own clock: on a busy machine a program takes longer, but does not
use more. A program that does nothing is caught by its idle time, which is the time it neither ran nor waited
for a core; waiting for a core is the machine's fault.
"""

import os
import resource
import select
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

__all__ = ["Bounds", "Disturbed", "End", "HungUp", "Watcher"]

_FIRST_LOOK, _LONGEST_NAP = 0.004, 0.025
_POLLRDHUP = 0x2000
_PAGE = resource.getpagesize()
_CEILING = 100
"""How many times its limits a program may take by the clock on the wall, however much its threads wait for cores."""
_BLIND_FACTOR = 10
"""Without /proc idleness cannot be told from waiting for a core; a program gets this many times as long."""


class Disturbed(Exception):
    """Somebody outside sent a signal to us, and so perhaps to what we watched: how it ended says nothing."""


class HungUp(Exception):
    """The pool is gone; there is nobody left to judge for."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a process may use before it is killed."""

    cpu_s: float
    idle_s: float
    memory: int


@dataclass(frozen=True, slots=True)
class End:
    """How a process ended."""

    status: int
    """As waitpid tells it."""
    cpu_s: float
    wall_s: float
    memory: int
    killed: str = ""
    """Which bound it was killed for: cpu, idle or memory; "stopped" if it was no longer needed."""
    waited_s: float = 0.0
    """How long it had waited for a core when it was killed for its processor time."""


class Watcher:
    """Watches processes for one worker."""

    def __init__(self, proc: int | None, control: int, tick: Callable[[], None] = lambda: None) -> None:
        self._proc = proc
        self._control = control
        self._tick = tick
        """Called now and then while waiting."""
        self._signal = ""

    def wait(self, pid: int, bounds: Bounds, *, until: int | None = None) -> End:
        """Wait for the end of `pid`; or for that of the process `until`, and then stop `pid`."""
        started = time.monotonic()
        handles = [os.pidfd_open(each) for each in (pid, until) if each is not None]
        try:
            try:
                killed = self._wait(pid, bounds, until, handles, started)
            except HungUp:
                _kill(handles[0])
                raise
            waited = self._waited(pid) if killed == "cpu" else 0.0
            if killed:
                _kill(handles[0])
        finally:
            for handle in handles:
                os.close(handle)
        _, status, usage = os.wait4(pid, 0)
        if self._signal:
            raise Disturbed(self._signal)
        if killed == "stopped" and status != signal.SIGKILL:
            killed = ""  # it had ended by itself already
        wall = time.monotonic() - started
        return End(status, usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss * 1024, killed, waited)

    def heed_signals(self) -> None:
        """Who ends everything at once, a service manager say, means the pool, which finishes in order.

        But programs hear it as well, and end.
        """
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, self._note)

    def _note(self, number: int, _: object) -> None:
        self._signal = signal.Signals(number).name

    def _wait(self, pid: int, bounds: Bounds, until: int | None, handles: Sequence[int], started: float) -> str:
        poller = select.poll()
        for handle in handles:
            poller.register(handle, select.POLLIN)
        poller.register(self._control, _POLLRDHUP)
        nap = _FIRST_LOOK
        while True:
            used = _cpu(pid)
            left = bounds.cpu_s - used
            if left <= 0:
                return "cpu"
            ended = {handle for handle, _ in poller.poll(max(1, 1000 * min(nap, left)))}
            if self._control in ended:
                raise HungUp
            if ended:
                return "" if handles[0] in ended else "stopped"
            if self._memory(pid) > bounds.memory:
                return "memory"
            wall = time.monotonic() - started
            if wall > _CEILING * (bounds.cpu_s + bounds.idle_s):
                return "idle"
            if self._is_idle([pid] if until is None else [pid, until], wall, bounds.idle_s):
                return "idle"
            self._tick()
            nap = min(2 * nap, _LONGEST_NAP)

    def _memory(self, pid: int) -> int:
        words = self._read(f"{pid}/statm").split()
        return int(words[1]) * _PAGE if len(words) > 1 else 0

    def _is_idle(self, pids: Sequence[int], wall: float, most: float) -> bool:
        """Whether nobody ran or wanted to run for `most` seconds in all."""
        if wall <= most:
            return False
        busy = sum(map(_cpu, pids))
        if self._proc is None:
            return wall - busy > _BLIND_FACTOR * most
        return wall - busy - sum(map(self._waited, pids)) > most

    def _waited(self, pid: int) -> float:
        """Seconds the threads of a process have spent waiting for a core."""
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
    """Seconds of processor time used by all threads of a process so far; 0 when it is gone."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # how the kernel numbers the clock of a process
    except OSError:
        return 0.0
