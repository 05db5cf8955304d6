"""Starting one process inside the jail: a program to be judged, a compiler, or the warm interpreter.

Everything between fork and exec happens here. If some of it fails, that is the judge's failure and never the
program's: it is told through a pipe that the program does not inherit.
"""

import fcntl
import os
import resource
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from dojang.judge.sandbox import linux
from dojang.judge.sandbox.bpf import Filter
from dojang.judge.sandbox.policy import EXEC_FD

__all__ = ["DESCRIPTORS", "Broken", "Setting", "Streams", "memory_file", "process_limits", "read_all", "spawn"]

_REPORT_FD = EXEC_FD + 1
_KEPT_FD = EXEC_FD - 1
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
DESCRIPTORS = 64
"""How many a program may have open; EXEC_FD and those beside it lie far above."""


class Broken(Exception):
    """The judge itself failed."""


@dataclass(frozen=True, slots=True)
class Streams:
    """Descriptors for the standard streams."""

    stdin: int
    stdout: int
    stderr: int


@dataclass(frozen=True, slots=True)
class Setting:
    """The circumstances a process is started in."""

    limits: Mapping[int, int]
    """resource.RLIMIT_* -> value."""
    directory: str = "/"
    filter: Filter | None = None
    ruleset: int | None = None
    """Landlock's, if the process must be put under one."""
    environment: Mapping[str, str] = field(default_factory=dict)
    kept: int | None = None
    """One more descriptor the process inherits, as number 3."""
    own_group: bool = False


def spawn(program: int | str, arguments: Sequence[str], streams: Streams, setting: Setting) -> int:
    """Start a program, open or named, and return its process id once it runs."""
    report, told = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            _become(program, arguments, streams, setting, told)
        except BaseException as error:
            with suppress(OSError):
                os.write(told, f"{type(error).__name__}: {error}".encode())
        os._exit(127)
    os.close(told)
    try:
        words = os.read(report, 500)
    finally:
        os.close(report)
    if words:
        os.waitpid(pid, 0)
        raise Broken(f"cannot start {arguments[0]}: {words.decode(errors='replace')}")
    return pid


def _become(program: int | str, arguments: Sequence[str], streams: Streams, setting: Setting, told: int) -> None:
    linux.die_with_parent()
    linux.no_new_privileges()
    if setting.ruleset is not None:
        linux.landlock_restrict(setting.ruleset)
    _place(program, streams, setting, told)
    if setting.own_group:
        os.setpgid(0, 0)
    os.chdir(setting.directory)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, and what is ignored stays so
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for kind, value in setting.limits.items():
        linux.limit(kind, value)
    if setting.filter is not None:
        linux.install_filter(setting.filter.for_process(os.getpid()))
    environment = [f"{name}={value}" for name, value in setting.environment.items()]
    if isinstance(program, int):
        linux.execute(EXEC_FD, arguments, environment)
    else:
        os.execve(program, list(arguments), dict(setting.environment))


def _place(program: int | str, streams: Streams, setting: Setting, told: int) -> None:
    """Give every descriptor the child keeps its number, and close all others."""
    os.dup2(told, _REPORT_FD, inheritable=False)
    if setting.kept is not None:
        os.dup2(setting.kept, _KEPT_FD, inheritable=False)
    if isinstance(program, int):
        os.dup2(program, EXEC_FD, inheritable=False)
    for number, given in enumerate((streams.stdin, streams.stdout, streams.stderr)):
        os.dup2(given, number)
    linux.close_from(3, _KEPT_FD - 1)
    linux.close_from(_REPORT_FD + 1)
    if setting.kept is not None:
        os.dup2(_KEPT_FD, 3)


def memory_file(data: bytes = b"", *, sealed: bool = False) -> int:
    """A file that has no name; sealed, nobody can ever change it."""
    file = os.memfd_create("judge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
    os.lseek(file, 0, os.SEEK_SET)
    if sealed:
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
    return file


def read_all(file: int, most: int) -> bytes:
    """Up to `most` bytes from the beginning."""
    pieces, at = [], 0
    while at < most and (piece := os.pread(file, min(most - at, 1 << 20), at)):
        pieces.append(piece)
        at += len(piece)
    return b"".join(pieces)


def process_limits(memory: int, stack: int, size: int, cpu_s: int) -> dict[int, int]:
    """What every kind of process is limited in."""
    return {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_STACK: stack,
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_FSIZE: size,
        resource.RLIMIT_NOFILE: DESCRIPTORS,
        resource.RLIMIT_CPU: cpu_s,
    }
