"""Starts one process inside the jail: a judged program, a compiler or the warm interpreter.

A failure here is the judge's failure, with one exception: a program that the kernel cannot execute.
"""

import fcntl
import os
import resource
import signal
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from dojang.judge.sandbox.bpf import Filter
from dojang.judge.sandbox.linux import FILTER_SPEC_ALLOW, PR_SET_PDEATHSIG
from dojang.judge.sandbox.syscall_policy import EXEC_FD
from dojang.judge.sandbox.vfork_exec import Launch, StepFailed

__all__ = [
    "DESCRIPTORS",
    "CannotExecute",
    "ProcessOptions",
    "SandboxFailure",
    "Streams",
    "effective_limit",
    "memory_file",
    "process_limits",
    "read_all",
    "read_end",
    "spawn",
]

DESCRIPTORS = 64
"""RLIMIT_NOFILE of a program; EXEC_FD is far above."""
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_KEPT_FD = 3
_AT_EMPTY_PATH = 0x1000
_DEFAULT_ACTION = bytes(32)
_LAST = 0x7FFFFFFF
_RESET = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class SandboxFailure(Exception):
    """The judge failed, not the program."""


class CannotExecute(Exception):
    """The kernel cannot execute this file."""


@dataclass(frozen=True, slots=True)
class Streams:
    """Descriptors for the standard streams."""

    stdin: int
    stdout: int
    stderr: int


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """Limits, confinement and environment of a new process."""

    limits: Mapping[int, int]
    """Rlimits: resource.RLIMIT_* -> value."""
    directory: str = "/"
    filter: Filter | None = None
    ruleset: int | None = None
    """Landlock ruleset to apply, if any."""
    environment: Mapping[str, str] = field(default_factory=dict)
    kept: int | None = None
    """Another descriptor to inherit, as number 3."""
    own_group: bool = False


def spawn(program: int | str, arguments: Sequence[str], streams: Streams, options: ProcessOptions) -> int:
    """Start a program, given as a descriptor or a path, and return its process id once it runs."""
    launch = Launch()
    launch.step("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)
    if options.ruleset is not None:
        launch.step("landlock_restrict_self", options.ruleset, 0)
    _place(launch, program, streams, options.kept)
    if options.own_group:
        launch.step("setpgid", 0, 0)
    launch.step("chdir", launch.address(os.fsencode(options.directory) + b"\0"))
    for number in _RESET:  # ignored signals would stay ignored after exec
        launch.step("rt_sigaction", number, launch.address(_DEFAULT_ACTION), 0, 8)
    for kind, value in options.limits.items():
        launch.step("prlimit64", 0, kind, launch.address(struct.pack("<QQ", *effective_limit(kind, value))), 0)
    if options.filter is not None:
        _guard(launch, options.filter)
    environment = launch.strings([f"{name}={value}" for name, value in options.environment.items()])
    if isinstance(program, int):
        empty = launch.address(b"\0")
        launch.step("execveat", EXEC_FD, empty, launch.strings(arguments), environment, _AT_EMPTY_PATH)
    else:
        launch.step("execve", launch.address(os.fsencode(program) + b"\0"), launch.strings(arguments), environment)
    try:
        return launch.go()
    except StepFailed as error:
        if error.step == "execveat":
            raise CannotExecute(str(error)) from error
        raise SandboxFailure(f"cannot start {arguments[0]}: {error}") from error


def _place(launch: Launch, program: int | str, streams: Streams, kept: int | None) -> None:
    """Move the inherited descriptors to their numbers. All others close on exec; close_range closes them too."""
    wanted = {0: streams.stdin, 1: streams.stdout, 2: streams.stderr}
    if kept is not None:
        wanted[_KEPT_FD] = kept
    if isinstance(program, int):
        launch.step("dup3", program, EXEC_FD, os.O_CLOEXEC)
    for number, given in wanted.items():
        if number != given:
            launch.step("dup3", given, number, 0)
    launch.step("close_range", max(wanted) + 1, EXEC_FD - 1, 0, may_fail=True)  # since kernel 5.9
    launch.step("close_range", EXEC_FD + 1, _LAST, 0, may_fail=True)


def effective_limit(kind: int, value: int) -> tuple[int, int]:
    """An rlimit as (soft, hard), capped by the hard limit of this process."""
    ceiling = _ceiling(kind)
    # One second apart, so that SIGXCPU at the soft limit tells why the process ended.
    hard = value + 1 if kind == resource.RLIMIT_CPU else value
    hard = hard if ceiling == resource.RLIM_INFINITY else min(hard, ceiling)
    return min(value, hard), hard


@cache
def _ceiling(kind: int) -> int:
    return resource.getrlimit(kind)[1]


def _guard(launch: Launch, filter: Filter) -> None:
    code = launch.address(filter.code)
    for index in filter.self_at:
        launch.step("getpid", copy_to=code + 8 * index + 4)
    program = launch.address(struct.pack("<HxxxxxxQ", len(filter.code) // 8, code))
    launch.step("seccomp", 1, FILTER_SPEC_ALLOW, program)


def memory_file(data: bytes = b"", *, sealed: bool = False) -> int:
    """Create an anonymous file in memory. A sealed one can never be changed."""
    file = os.memfd_create("judge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
    if data:
        os.lseek(file, 0, os.SEEK_SET)
    if sealed:
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
    return file


def read_all(file: int, most: int) -> bytes:
    """Read up to `most` bytes from the beginning."""
    pieces, at = [], 0
    while at < most and (piece := os.pread(file, min(most - at, 1 << 20), at)):
        pieces.append(piece)
        at += len(piece)
    return b"".join(pieces)


def read_end(file: int, most: int) -> bytes:
    """Read the last bytes, up to `most`."""
    return os.pread(file, most, max(0, os.fstat(file).st_size - most))


def process_limits(memory: int, stack: int, size: int, cpu_s: int) -> dict[int, int]:
    """Rlimits that every kind of process gets."""
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
