"""Limits of all processes of a sandbox together: CPU time, wall time, memory and number of processes.

The caller is process 1 of its PID namespace: orphans become its children, and `kill_all` reaches every process that is
left, however it was started.
"""

import os
import resource
import signal
import time
from contextlib import suppress
from dataclasses import dataclass

__all__ = ["GroupLimits", "ProcessGroup", "kill_all"]

_PAGE = resource.getpagesize()
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Limits of a command and all processes it starts, in seconds and bytes."""

    cpu_s: float
    wall_s: float
    memory: int
    processes: int
    file: int
    """Largest size of one file."""

    def exceeded(self, used: "_Used") -> str:
        """Say which limit is exceeded; empty if none."""
        if used.cpu_s > self.cpu_s:
            return f"it ran for more than {self.cpu_s:g} s of CPU time"
        if used.wall_s > self.wall_s:
            return f"it took more than {self.wall_s:g} s"
        if used.memory > self.memory:
            return f"it used more than {self.memory >> 20} MB of memory"
        if used.processes > self.processes:
            return f"it started more than {self.processes} processes"
        return ""


@dataclass(frozen=True, slots=True)
class _Used:
    cpu_s: float
    wall_s: float
    memory: int
    processes: int


class ProcessGroup:
    """Measures all processes of this PID namespace, from the moment it is made."""

    def __init__(self, proc: int) -> None:
        """`proc`: descriptor of the namespace's /proc."""
        self._proc = proc
        self._started = time.monotonic()
        self._reaped = _children_s()

    def used(self) -> _Used:
        """Sum up what the processes have used so far, with those that have ended."""
        cpu, memory, count = _children_s() - self._reaped, 0, 0
        for name in os.listdir(self._proc):
            if not name.isdecimal() or name == "1":
                continue
            fields = self._read(f"{name}/stat").rpartition(b")")[2].split()
            if len(fields) > 14:
                count += 1
                cpu += sum(map(int, fields[11:15])) / _TICK
            pages = self._read(f"{name}/statm").split()
            if len(pages) > 2:
                memory += (int(pages[1]) - int(pages[2])) * _PAGE
        return _Used(cpu, time.monotonic() - self._started, memory, count)

    def _read(self, path: str) -> bytes:
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
        except OSError:
            return b""  # it has ended
        try:
            return os.read(file, 1024)
        except OSError:
            return b""
        finally:
            os.close(file)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def kill_all() -> None:
    """Kill every other process of this PID namespace and wait until none is left. The kernel lets no fork slip through:
    a process with a pending signal cannot fork."""
    if os.getpid() != 1:
        raise RuntimeError("kill_all outside a PID namespace would kill the user's processes")
    while True:
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return
