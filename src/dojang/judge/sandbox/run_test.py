"""Runs one test of a program: on an input, or with assertions that call its functions.

Standard input is a sealed file in memory, standard output another one. So no program blocks on a full pipe, and none
can change the input of the next test.
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
from dojang.judge.sandbox.function_calls import CANDIDATE_GONE, RAISED, WRONG
from dojang.judge.sandbox.interpreter_client import Interpreter
from dojang.judge.sandbox.jail import Jail, wipe
from dojang.judge.sandbox.limits import LimitsWatcher, ProcessEnd, ResourceLimits
from dojang.judge.sandbox.start_process import (
    CannotExecute,
    ProcessOptions,
    SandboxFailure,
    Streams,
    memory_file,
    process_limits,
    read_all,
    read_end,
    spawn,
)
from dojang.types import Outcome

__all__ = ["NotPython", "Result", "RunLimits", "Runner", "Script"]

GRACE, SECOND_GRACE = 1.25, 2.0
"""Factors on the CPU limit. Shared caches and stolen cycles inflate CPU time. A program is killed at the first
factor. If it ended between limit and factor, or had to wait for a core, it runs again with the second factor and the
smaller CPU time counts. Endless programs on a quiet machine cost the first factor only."""
_CROWDED = 0.1
"""Run delay per CPU second from which the machine counts as crowded."""
_ADDRESS_SPACE = 2 << 30
"""Address space beyond the memory limit: untouched addresses cost nothing."""
_OTHERS = 3
"""Other processes of the program's user: the worker, its interpreter, perhaps the assertion runner."""
_SESSION_CPU_S = 24 * 3600
"""CPU limit of an interactive session; each of its pieces of code has the limit of a run."""
_ERRORS = 1 << 16
_SOURCE = "main.py"
_SHOWN_DIRECTORY = b"/tmp/"
_ASSERTION_LIMITS = ResourceLimits(cpu_s=60.0, idle_s=60.0, memory=1 << 30)


class NotPython(Exception):
    """The source does not compile; the message says why."""


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Limits of one run, in seconds and bytes."""

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
    """Result of one run. `outcome` is ACCEPTED if it ended without an error, whatever it printed."""

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
    """Whether it waited long for a core."""


class Script:
    """A Python program: its source, and its bytecode once the first run has compiled it.

    A run writes the bytecode before it executes the program, and only runs of the same program read it.
    """

    def __init__(self, source: bytes) -> None:
        self.source = source
        self._text = memory_file(source, sealed=True)
        self._code = memory_file()
        self.compiled = False

    def files(self) -> tuple[int, ...]:
        """Descriptors for a run: the bytecode, or the source and an empty file for the bytecode."""
        return (self._code,) if self.compiled else (self._text, self._code)

    def ran(self, end: ProcessEnd) -> None:
        """Record the end of a run. A killed run may have written half of the bytecode."""
        if not self.compiled:
            self.compiled = not end.killed and os.fstat(self._code).st_size > 0
            if not self.compiled:
                os.ftruncate(self._code, 0)
                os.lseek(self._code, 0, os.SEEK_SET)

    def close(self) -> None:
        os.close(self._text)
        os.close(self._code)


class Runner:
    """Runs tests; holds everything that outlasts a run."""

    def __init__(
        self,
        jail: Jail,
        watcher: LimitsWatcher,
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
        self, program: int, stdin: bytes, limits: RunLimits, *, arguments: tuple[str, ...] = (), files: bool = False
    ) -> Result:
        """Run a compiled program. `files` lets it open the files in the jail."""
        if loaded_size(program) > limits.memory + _ADDRESS_SPACE:
            return _refused(Outcome.MEMORY_LIMIT, "static data alone exceed the memory limit")
        options = ProcessOptions(
            self._rlimits(limits),
            directory=self._jail.scratch if files else "/",
            filter=self._with_files if files else self._bare,
            ruleset=self._jail.ruleset if files else None,
            environment={"LANG": "C"},
        )

        def attempt(grace: float) -> Result:
            with _Input(stdin, self._jail.proc) as file:
                streams = self._streams(file)
                self._reset_peak()
                try:
                    pid = spawn(program, ["program", *arguments], streams, options)
                except CannotExecute as error:
                    return _refused(Outcome.RUNTIME_ERROR, f"the kernel cannot execute it ({error})")
                return self._as_result(self._watcher.wait(pid, _process_limits(limits, grace)), limits, charged=True)

        return self._once(attempt) if arguments else self._run_twice_if_crowded(attempt, limits)

    def python(self, script: Script, stdin: bytes, limits: RunLimits, *, arguments: tuple[str, ...] = ()) -> Result:
        """Run a Python program. Raises NotPython if it does not compile."""

        def attempt(grace: float) -> Result:
            self._write_source(script.source)
            with _Input(stdin, self._jail.proc) as file:
                streams = self._streams(file)
                files = (streams.stdin, streams.stdout, streams.stderr, *script.files())
                rlimits = self._rlimits(limits)
                pid = self._interpreter.fork("program", files, rlimits, arguments=arguments, compiled=script.compiled)
                end = self._watcher.wait(pid, _process_limits(limits, grace))
                if end.status:  # a child that reports an error exits with a status
                    _raise_reported(self._interpreter.read_report())
                script.ran(end)
                return self._as_result(end, limits)

        return self._once(attempt) if arguments else self._run_twice_if_crowded(attempt, limits)

    def start(self, script: Script, stdin: int, stdout: int, limits: RunLimits) -> int:
        """Start a Python program that the caller watches, and return its process id."""
        rlimits = self._rlimits(limits) | {resource.RLIMIT_CPU: _SESSION_CPU_S}
        files = (stdin, stdout, self._stderr, *script.files())
        return self._interpreter.fork("program", files, rlimits, compiled=script.compiled)

    def check_report(self) -> None:
        """Raise SandboxFailure if such a program could not be started."""
        _raise_reported(self._interpreter.read_report())

    def calls(self, source: bytes, code: bytes, function: str, limits: RunLimits) -> Result:
        """Run assertions that call functions of a Python program."""
        return self._run_twice_if_crowded(
            lambda grace: self._run_assertions(source, code, function, limits, grace), limits
        )

    def _run_assertions(self, source: bytes, code: bytes, function: str, limits: RunLimits, grace: float) -> Result:
        self._write_source(source)
        words = memory_file()
        near, far = socket.socketpair()
        rlimits = self._rlimits(limits)
        with near, far, _Input(source) as text, _Input(code) as test:
            streams = self._streams(self._null)
            files = (self._null, streams.stdout, streams.stderr, text, far.fileno())
            candidate = self._interpreter.fork("candidate", files, rlimits)
            own = rlimits | {resource.RLIMIT_AS: 4 << 30, resource.RLIMIT_CPU: 60}
            files = (self._null, self._null, words, test, near.fileno())
            assertions = self._interpreter.fork("assertions", files, own, function=function)
        try:
            end = self._watcher.wait(candidate, _process_limits(limits, grace), until=assertions)
            judged = self._watcher.wait(assertions, _ASSERTION_LIMITS)
            said = read_all(words, 2000).decode(errors="replace")
        finally:
            os.close(words)
        _raise_reported(self._interpreter.read_report())
        return _combine(self._as_result(end, limits), judged, said)

    def _write_source(self, source: bytes) -> None:
        """Write the source to a file that the program can read and tracebacks quote."""
        if self._interpreter.files:
            with open(os.path.join(self._jail.scratch, _SOURCE), "wb", buffering=0) as file:
                file.write(source)

    def _reset_peak(self) -> None:
        if self._jail.peak is not None:
            os.pwrite(self._jail.peak, b"5", 0)

    def _streams(self, stdin: int) -> Streams:
        """Open new output files: a program may have left flags on the old ones."""
        os.close(self._stdout)
        os.close(self._stderr)
        self._stdout, self._stderr = memory_file(), memory_file()
        return Streams(stdin, self._stdout, self._stderr)

    def _rlimits(self, limits: RunLimits) -> dict[int, int]:
        rlimits = process_limits(
            # Each thread reserves as much stack as the main thread may use.
            memory=limits.memory + _ADDRESS_SPACE + min(limits.processes, 64) * limits.stack,
            stack=limits.stack,
            size=max(limits.output, limits.file),
            cpu_s=math.ceil(SECOND_GRACE * limits.cpu_s) + 1,
        )
        if self._private_user:  # the kernel counts per user, and no other program has this user
            rlimits[resource.RLIMIT_NPROC] = limits.processes + _OTHERS
        return rlimits

    def _once(self, attempt: Callable[[float], Result]) -> Result:
        """Run a checker once: a second run would not find its argument files."""
        return attempt(SECOND_GRACE)

    def _run_twice_if_crowded(self, attempt: Callable[[float], Result], limits: RunLimits) -> Result:
        try:
            first = attempt(GRACE)
            if first.cpu_s <= limits.cpu_s or (first.cpu_s >= GRACE * limits.cpu_s and not first.crowded):
                return first
            wipe(self._jail.scratch)
            return min(first, attempt(SECOND_GRACE), key=lambda result: result.cpu_s)
        finally:
            wipe(self._jail.scratch)

    def _as_result(self, end: ProcessEnd, limits: RunLimits, *, charged: bool = False) -> Result:
        size = os.fstat(self._stdout).st_size
        # Before exec, a vfork child shares our memory and is charged with it: a smaller peak than ours proves
        # nothing.
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 if charged else 0
        memory = end.memory if end.memory > own else 0
        outcome, detail = _outcome(end, limits, size, memory)
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
            output=read_all(self._stdout, min(size, limits.output)),
            errors=errors,
            crowded=end.waited_s > _CROWDED * end.cpu_s,
        )

    def _errors(self) -> bytes:
        """Read standard error, with the same directory name at every isolation level."""
        errors = read_end(self._stderr, _ERRORS)
        own = os.fsencode(self._jail.scratch) + b"/"
        return errors if own == _SHOWN_DIRECTORY else errors.replace(own, _SHOWN_DIRECTORY)


class _Input:
    """Context manager of a sealed file; read-only where /proc is available."""

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


def _process_limits(limits: RunLimits, grace: float) -> ResourceLimits:
    return ResourceLimits(grace * limits.cpu_s, limits.idle_s, limits.memory)


def _raise_reported(report: str) -> None:
    """Raise the error that a child of the interpreter reported before its program started."""
    kind, _, words = report.partition(" ")
    if kind == "syntax":
        raise NotPython(words)
    if kind == "broken":
        raise SandboxFailure(words)


def _refused(outcome: Outcome, detail: str) -> Result:
    return Result(outcome, 0.0, 0.0, 0, None, None, detail, b"", b"")


def _outcome(end: ProcessEnd, limits: RunLimits, size: int, memory: int) -> tuple[Outcome, str]:
    if end.killed == "cpu" or end.cpu_s > limits.cpu_s:
        return Outcome.TIME_LIMIT, f"more than {limits.cpu_s:g} s of CPU time"
    if end.killed == "idle":
        return Outcome.TIME_LIMIT, f"idle for more than {limits.idle_s:g} s"
    if end.killed == "memory" or memory > limits.memory:
        return Outcome.MEMORY_LIMIT, f"more than {limits.memory >> 20} MB"
    code = os.waitstatus_to_exitcode(end.status)
    if code == -signal.SIGXFSZ or size > limits.output:
        return Outcome.OUTPUT_LIMIT, f"more than {limits.output / 2**20:g} MB of output"
    if end.killed or code == 0:
        return Outcome.ACCEPTED, ""
    if code == -signal.SIGXCPU:
        return Outcome.TIME_LIMIT, f"more than {limits.cpu_s:g} s of CPU time"
    if code == -signal.SIGKILL:  # not by us: the kernel was out of memory, and any process may have caused it
        raise SandboxFailure("a program was killed from outside")
    if code == -signal.SIGSYS:
        return Outcome.RUNTIME_ERROR, "forbidden system call (SIGSYS)"
    return Outcome.RUNTIME_ERROR, f"exit code {code}" if code > 0 else f"signal {_name(-code)}"


def _missing_module(words: str) -> str:
    """Describe the missing module that ended a program; empty if another error ended it."""
    last = words.rstrip().rpartition("\n")[2]
    if not last.startswith("ModuleNotFoundError: "):
        return ""
    return f"{last[:200]} (judge.packages lists the packages programs may import)"


def _name(number: int) -> str:
    """Name of a signal; most real-time signals have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def _combine(candidate: Result, judged: ProcessEnd, said: str) -> Result:
    """Combine the end of the candidate and the result of the assertions."""
    if candidate.outcome is not Outcome.ACCEPTED and candidate.outcome is not Outcome.RUNTIME_ERROR:
        return candidate
    found = os.waitstatus_to_exitcode(judged.status)
    if judged.killed or found == -signal.SIGXCPU:  # its work depends on the program's answers
        detail = "the test ran out of time or memory on the program's answers"
        return replace(candidate, outcome=Outcome.RUNTIME_ERROR, detail=detail)
    if found == 0:
        return replace(candidate, outcome=Outcome.ACCEPTED, detail="", exit_code=0, signal=None)
    if found == WRONG:
        return replace(candidate, outcome=Outcome.WRONG, detail=said)
    if found == RAISED:
        return replace(candidate, outcome=Outcome.RUNTIME_ERROR, detail=_missing_module(said) or said)
    if found == CANDIDATE_GONE:
        detail = candidate.detail or "the program ended while it was being called"
        return replace(candidate, outcome=Outcome.RUNTIME_ERROR, detail=detail)
    raise SandboxFailure(f"the assertion runner exited with {found}: {said}")


def loaded_size(program: int) -> int:
    """Bytes an ELF file needs when loaded: the kernel kills it without an error message if that fails."""
    head = os.pread(program, 64, 0)
    if head[:5] != b"\x7fELF\x02":
        return 0
    at, size, count = (int.from_bytes(head[start:end], "little") for start, end in ((32, 40), (54, 56), (56, 58)))
    table = os.pread(program, size * count, at)
    entries = [table[start : start + size] for start in range(0, len(table), size)]
    with suppress(IndexError):
        return sum(int.from_bytes(entry[40:48], "little") for entry in entries if entry[:4] == b"\x01\0\0\0")
    return 0
