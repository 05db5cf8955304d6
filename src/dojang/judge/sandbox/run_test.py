"""Running a program once: on an input, or under the questions of an examiner.

Standard input is a sealed file in memory and standard output another, so that no program waits for a pipe nobody
drains and none can change what the next test reads.
"""

import math
import os
import resource
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from dojang.judge.sandbox.bpf import Filter
from dojang.judge.sandbox.function_calls import GONE, RAISED, WRONG
from dojang.judge.sandbox.interpreter_client import Interpreter
from dojang.judge.sandbox.jail import Jail, wipe
from dojang.judge.sandbox.limits import Bounds, End, Watcher
from dojang.judge.sandbox.start_process import (
    Broken,
    CannotExecute,
    Setting,
    Streams,
    memory_file,
    process_limits,
    read_all,
    read_end,
    spawn,
)
from dojang.types import Outcome

__all__ = ["Allowance", "NotPython", "Result", "Runner", "Script"]

GRACE, SECOND_GRACE = 1.25, 2.0
"""Processor time is inflated by neighbours (shared caches, stolen cycles). A program is killed at the first multiple of
its limit; if it ended in between, or had to wait for a core, it runs a second time, with the second multiple,
and the better figure counts. Endless programs on a quiet machine cost no more than the first."""
_CROWDED = 0.1
"""Seconds of waiting for a core per second of running, from which on a machine counts as crowded."""
_ADDRESS_SPACE = 2 << 30
"""Addresses a program may have beyond its memory: what it never touches costs nothing."""
_OTHERS = 3
"""Processes of the same user beside a program: the worker, its interpreter, perhaps an examiner."""
_ERRORS = 1 << 16
_SOURCE = "main.py"
_SHOWN_DIRECTORY = b"/tmp/"
_EXAMINER = Bounds(cpu_s=60.0, idle_s=60.0, memory=1 << 30)


class NotPython(Exception):
    """The source does not compile; the message says why."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """Limits as a worker uses them: seconds and bytes."""

    cpu_s: float
    idle_s: float
    memory: int
    output: int
    processes: int
    file: int
    stack: int
    compile_s: float


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one run. `outcome` is ACCEPTED if it ended well, whatever it printed."""

    outcome: Outcome
    cpu_s: float
    wall_s: float
    memory: int
    exit_code: int | None
    signal: str | None
    detail: str
    output: bytes
    errors: bytes
    crowded: bool = False
    """Whether it had to wait for a core much."""


class Script:
    """A Python program as its runs get it: the text, and once a run has left it behind, the code that comes of it.

    A run writes the code before anything of the program is executed, and only runs of the same program read it."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self._text = memory_file(source, sealed=True)
        self._code = memory_file()
        self.compiled = False

    def files(self) -> tuple[int, ...]:
        """What a run is given: something to execute, and somewhere to leave the code if that is missing."""
        return (self._code,) if self.compiled else (self._text, self._code)

    def ran(self, end: End) -> None:
        """A run has ended. One that was killed may have been interrupted while it wrote."""
        if not self.compiled:
            self.compiled = not end.killed and os.fstat(self._code).st_size > 0
            if not self.compiled:
                os.ftruncate(self._code, 0)
                os.lseek(self._code, 0, os.SEEK_SET)

    def close(self) -> None:
        os.close(self._text)
        os.close(self._code)


class Runner:
    """Everything a run needs that outlasts it."""

    def __init__(
        self,
        jail: Jail,
        watcher: Watcher,
        interpreter: Interpreter,
        filters: tuple[Filter | None, Filter | None],
        *,
        private_user: bool,
    ) -> None:
        self._jail = jail
        self._watcher = watcher
        self._interpreter = interpreter
        self._bare, self._with_files = filters
        self._private_user = private_user
        self._stdout = memory_file()
        self._stderr = memory_file()
        self._null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)

    def native(
        self, program: int, stdin: bytes, allowance: Allowance, *, arguments: tuple[str, ...] = (), files: bool = False
    ) -> Result:
        """Run a compiled program; `files` lets it open what the jail shows."""
        if loaded_size(program) > allowance.memory + _ADDRESS_SPACE:
            return _refused(Outcome.MEMORY_LIMIT, "its static data alone exceed the memory limit")
        setting = Setting(
            self._limits(allowance),
            directory=self._jail.scratch if files else "/",
            filter=self._with_files if files else self._bare,
            ruleset=self._jail.ruleset if files else None,
            environment={"LANG": "C"},
        )

        def attempt(grace: float) -> Result:
            with _Input(stdin, self._jail.proc) as file:
                streams = self._streams(file)
                self._forget_own_peak()
                try:
                    pid = spawn(program, ["program", *arguments], streams, setting)
                except CannotExecute as error:
                    return _refused(Outcome.RUNTIME_ERROR, f"cannot be executed ({error})")
                return self._end_of(self._watcher.wait(pid, _bounds(allowance, grace)), allowance, charged=True)

        return self._once(attempt) if arguments else self._fairly(attempt, allowance)

    def python(self, script: Script, stdin: bytes, allowance: Allowance, *, arguments: tuple[str, ...] = ()) -> Result:
        """Run a Python program; NotPython if it is none."""

        def attempt(grace: float) -> Result:
            self._write_source(script.source)
            with _Input(stdin, self._jail.proc) as file:
                streams = self._streams(file)
                files = (streams.stdin, streams.stdout, streams.stderr, *script.files())
                limits = self._limits(allowance)
                pid = self._interpreter.fork("program", files, limits, arguments=arguments, compiled=script.compiled)
                end = self._watcher.wait(pid, _bounds(allowance, grace))
                if end.status:  # a child that has something to say does not end well
                    _heed(self._interpreter.told())
                script.ran(end)
                return self._end_of(end, allowance)

        return self._once(attempt) if arguments else self._fairly(attempt, allowance)

    def calls(self, source: bytes, code: bytes, function: str, allowance: Allowance) -> Result:
        """Run assertions about the functions of a Python program."""
        return self._fairly(lambda grace: self._examined(source, code, function, allowance, grace), allowance)

    def _examined(self, source: bytes, code: bytes, function: str, allowance: Allowance, grace: float) -> Result:
        self._write_source(source)
        words = memory_file()
        near, far = socket.socketpair()
        limits = self._limits(allowance)
        with near, far, _Input(source) as text, _Input(code) as test:
            streams = self._streams(self._null)
            files = (self._null, streams.stdout, streams.stderr, text, far.fileno())
            candidate = self._interpreter.fork("candidate", files, limits)
            own = limits | {resource.RLIMIT_AS: 4 << 30, resource.RLIMIT_CPU: 60}
            files = (self._null, self._null, words, test, near.fileno())
            examiner = self._interpreter.fork("examiner", files, own, function=function)
        try:
            end = self._watcher.wait(candidate, _bounds(allowance, grace), until=examiner)
            judged = self._watcher.wait(examiner, _EXAMINER)
            said = read_all(words, 2000).decode(errors="replace")
        finally:
            os.close(words)
        _heed(self._interpreter.told())
        return _weigh(self._end_of(end, allowance), judged, said)

    def _write_source(self, source: bytes) -> None:
        """A Python program is in a file that it can read, and that tracebacks take lines from."""
        if self._interpreter.files:
            with open(os.path.join(self._jail.scratch, _SOURCE), "wb", buffering=0) as file:
                file.write(source)

    def _forget_own_peak(self) -> None:
        if self._jail.peak is not None:
            os.pwrite(self._jail.peak, b"5", 0)

    def _streams(self, stdin: int) -> Streams:
        """New files every time: a program may leave odd flags on an open one."""
        os.close(self._stdout)
        os.close(self._stderr)
        self._stdout, self._stderr = memory_file(), memory_file()
        return Streams(stdin, self._stdout, self._stderr)

    def _limits(self, allowance: Allowance) -> dict[int, int]:
        limits = process_limits(
            # A thread reserves as much for its stack as the first one may use.
            memory=allowance.memory + _ADDRESS_SPACE + min(allowance.processes, 64) * allowance.stack,
            stack=allowance.stack,
            size=max(allowance.output, allowance.file),
            cpu_s=math.ceil(SECOND_GRACE * allowance.cpu_s) + 1,
        )
        if self._private_user:  # the kernel counts by user, and this one is nobody else
            limits[resource.RLIMIT_NPROC] = allowance.processes + _OTHERS
        return limits

    def _once(self, attempt: Callable[[float], Result]) -> Result:
        """For a checker: its arguments are files, which a second run would no longer find."""
        return attempt(SECOND_GRACE)

    def _fairly(self, attempt: Callable[[float], Result], allowance: Allowance) -> Result:
        try:
            first = attempt(GRACE)
            if first.cpu_s <= allowance.cpu_s or (first.cpu_s >= GRACE * allowance.cpu_s and not first.crowded):
                return first
            wipe(self._jail.scratch)
            return min(first, attempt(SECOND_GRACE), key=lambda result: result.cpu_s)
        finally:
            wipe(self._jail.scratch)

    def _end_of(self, end: End, allowance: Allowance, *, charged: bool = False) -> Result:
        size = os.fstat(self._stdout).st_size
        # A program that borrowed our memory until exec is charged with ours: a figure no larger than that says nothing.
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 if charged else 0
        memory = end.memory if end.memory > own else 0
        outcome, detail = _outcome(end, allowance, size, memory)
        code = os.waitstatus_to_exitcode(end.status)
        errors = self._errors()
        if outcome is Outcome.RUNTIME_ERROR and (missing := _missing_module(errors.decode(errors="replace"))):
            detail = f"{detail}: {missing}"
        return Result(
            outcome=outcome,
            cpu_s=end.cpu_s,
            wall_s=end.wall_s,
            memory=memory,
            exit_code=code if code >= 0 else None,
            signal=_name(-code) if code < 0 and not end.killed else None,
            detail=detail,
            output=read_all(self._stdout, min(size, allowance.output)),
            errors=errors,
            crowded=end.waited_s > _CROWDED * end.cpu_s,
        )

    def _errors(self) -> bytes:
        """What the program wrote to standard error, with its directory called the same at every level of isolation."""
        errors = read_end(self._stderr, _ERRORS)
        own = os.fsencode(self._jail.scratch) + b"/"
        return errors if own == _SHOWN_DIRECTORY else errors.replace(own, _SHOWN_DIRECTORY)


class _Input:
    """A sealed file with some data, as a context. Where there is a process list, it is opened for reading only."""

    def __init__(self, data: bytes, proc: int | None = None) -> None:
        self._file = memory_file(data, sealed=True)
        if proc is not None:
            with suppress(OSError):
                only_read = os.open(f"self/fd/{self._file}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
                os.close(self._file)
                self._file = only_read

    def __enter__(self) -> int:
        return self._file

    def __exit__(self, *_: object) -> None:
        os.close(self._file)


def _bounds(allowance: Allowance, grace: float) -> Bounds:
    return Bounds(grace * allowance.cpu_s, allowance.idle_s, allowance.memory)


def _heed(told: str) -> None:
    """What a child of the interpreter said before its program began."""
    kind, _, words = told.partition(" ")
    if kind == "syntax":
        raise NotPython(words)
    if kind == "broken":
        raise Broken(words)


def _refused(outcome: Outcome, detail: str) -> Result:
    return Result(outcome, 0.0, 0.0, 0, None, None, detail, b"", b"")


def _outcome(end: End, allowance: Allowance, size: int, memory: int) -> tuple[Outcome, str]:
    if end.killed == "cpu" or end.cpu_s > allowance.cpu_s:
        return Outcome.TIME_LIMIT, f"more than {allowance.cpu_s:g} s of processor time"
    if end.killed == "idle":
        return Outcome.TIME_LIMIT, f"idle for more than {allowance.idle_s:g} s"
    if end.killed == "memory" or memory > allowance.memory:
        return Outcome.MEMORY_LIMIT, f"more than {allowance.memory >> 20} MB"
    code = os.waitstatus_to_exitcode(end.status)
    if code == -signal.SIGXFSZ or size > allowance.output:
        return Outcome.OUTPUT_LIMIT, f"more than {allowance.output / 2**20:g} MB of output"
    if end.killed or code == 0:
        return Outcome.ACCEPTED, ""
    if code == -signal.SIGXCPU:
        return Outcome.TIME_LIMIT, f"more than {allowance.cpu_s:g} s of processor time"
    if code == -signal.SIGKILL:  # not by us: the kernel ran out of memory, for which nobody knows who is to blame
        raise Broken("a program was killed from outside")
    if code == -signal.SIGSYS:
        return Outcome.RUNTIME_ERROR, "forbidden system call (SIGSYS)"
    return Outcome.RUNTIME_ERROR, f"exit code {code}" if code > 0 else f"signal {_name(-code)}"


def _missing_module(words: str) -> str:
    """Which module a program ended for the lack of; empty if that is not what ended it."""
    last = words.rstrip().rpartition("\n")[2]
    if not last.startswith("ModuleNotFoundError: "):
        return ""
    return f"{last[:200]} (judge.packages lists the packages programs may import)"


def _name(number: int) -> str:
    """The signal's name; most of the real-time ones have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def _weigh(candidate: Result, judged: End, said: str) -> Result:
    """One result out of how the candidate ended and what the examiner found."""
    if candidate.outcome is not Outcome.ACCEPTED and candidate.outcome is not Outcome.RUNTIME_ERROR:
        return candidate
    found = os.waitstatus_to_exitcode(judged.status)
    if judged.killed or found == -signal.SIGXCPU:  # what it had to do depends on what it was answered
        detail = "the test ran out of time or memory on the program's answers"
        return replace(candidate, outcome=Outcome.RUNTIME_ERROR, detail=detail)
    if found == 0:
        return replace(candidate, outcome=Outcome.ACCEPTED, detail="", exit_code=0, signal=None)
    if found == WRONG:
        return replace(candidate, outcome=Outcome.WRONG, detail=said)
    if found == RAISED:
        return replace(candidate, outcome=Outcome.RUNTIME_ERROR, detail=_missing_module(said) or said)
    if found == GONE:
        detail = candidate.detail or "the program ended while it was being called"
        return replace(candidate, outcome=Outcome.RUNTIME_ERROR, detail=detail)
    raise Broken(f"the examiner ended with {found}: {said}")


def loaded_size(program: int) -> int:
    """Bytes of memory an ELF file asks for when it is loaded: the kernel kills without a word what cannot be."""
    head = os.pread(program, 64, 0)
    if head[:5] != b"\x7fELF\x02":
        return 0
    at, size, count = (int.from_bytes(head[start:end], "little") for start, end in ((32, 40), (54, 56), (56, 58)))
    table = os.pread(program, size * count, at)
    entries = [table[start : start + size] for start in range(0, len(table), size)]
    with suppress(IndexError):
        return sum(int.from_bytes(entry[40:48], "little") for entry in entries if entry[:4] == b"\x01\0\0\0")
    return 0
