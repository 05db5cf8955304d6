"""The worker process: inside its jail it compiles a program and runs it on one test after another.

It gets the inputs, but only keyed digests of the expected outputs. If a digest cannot decide a comparison, it asks
the pool. So a program that breaks out into this process finds no expected output.
"""

import hashlib
import os
import socket
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from dojang.judge.checkers import normalize, parse_checker_score
from dojang.judge.sandbox import messages
from dojang.judge.sandbox.compiling import COMPILER_MEMORY, CompileFailed, Compiler
from dojang.judge.sandbox.interpreter_client import Interpreter
from dojang.judge.sandbox.jail import Jail, wipe
from dojang.judge.sandbox.limits import Interrupted, LimitsWatcher, PoolDisconnected
from dojang.judge.sandbox.run_test import NotPython, Result, RunLimits, Runner, Script
from dojang.judge.sandbox.session import Session
from dojang.judge.sandbox.start_process import SandboxFailure, memory_file, read_all
from dojang.judge.sandbox.syscall_policy import compiler_filter, native_filter, python_filters
from dojang.programs import Checker, Stop, encoded
from dojang.types import Outcome

__all__ = ["CACHED_TEST_SUITES", "Worker", "digest"]

CACHED_TEST_SUITES = 8
"""Size of the worker's LRU cache of test suites. The pool mirrors it and sends a test suite only if it was evicted."""
_HEARTBEAT_S = 5.0
_SHOWN_FAILURES = 3
"""Number of failed tests whose output is reported."""
_SHOWN = 4000
_GROUP_SLACK = 1 << 30
_CHECKER = RunLimits(
    cpu_s=30, idle_s=30, memory=1 << 30, output=1 << 20, processes=16, file=1 << 28, stack=1 << 28, compile_s=60
)


def digest(key: bytes, checker: Checker, output: bytes) -> str:
    """Keyed digest of an output, used where the output itself must not be."""
    return hashlib.blake2b(normalize(checker, output), key=key, digest_size=16).hexdigest()


@dataclass(slots=True)
class _TestSuite:
    """A test suite as the worker knows it."""

    tests: list[dict[str, Any]]
    inputs: list[bytes]
    checker: Checker
    checker_language: dict[str, Any] | None
    checker_program: int | None = None


@dataclass(frozen=True, slots=True)
class _Job:
    """One program to judge on one test suite."""

    language: dict[str, Any]
    source: bytes
    test_suite: _TestSuite
    limits: RunLimits
    stop: Stop
    whole: bool
    """Return the complete output of every test."""


class Worker:
    """Serves one pool, one submission at a time."""

    def __init__(
        self, channel: socket.socket, spec: dict[str, Any], jail: Jail, *, private_user: bool, memory_limit: int | None
    ) -> None:
        self._channel = channel
        self._last_message = time.monotonic()
        machine = os.uname().machine
        guarded = spec["isolation"] != "none"
        files = spec["isolation"] in ("namespaces", "landlock")
        bare = native_filter(machine) if guarded else None
        with_files = native_filter(machine, files=files) if guarded else None
        watcher = LimitsWatcher(jail.proc, channel.fileno(), self._send_heartbeat)
        watcher.record_signals()
        interpreter = Interpreter(
            spec["python"],
            spec["scripts"],
            spec["paths"],
            jail.scratch,
            jail.ruleset,
            python_filters(machine, files=files) if guarded else None,
            files=files or not guarded,
        )
        self._key = bytes.fromhex(spec["key"])
        self._jail = jail
        self._memory_limit = memory_limit
        self._runner = Runner(jail, watcher, interpreter, (bare, with_files), private_user=private_user)
        self._compiler = Compiler(
            jail,
            watcher,
            compiler_filter(machine) if guarded else None,
            allowed=[*spec["readable"], spec["headers"]],
            audit=not files,
        )
        self._watcher = watcher
        self._session: Session | None = None
        self._suites: OrderedDict[str, _TestSuite] = OrderedDict()
        self._binary = b""
        self._diff_sent = False

    def serve(self) -> None:
        """Serve until the pool disconnects. Any unexpected error ends the worker: starting a new one is cheap."""
        messages.send(self._channel, {"ready": True})
        while True:
            header, pieces = messages.receive(self._channel)
            try:
                reply, answer = (self._run_cell if "cell" in header else self._judge)(header, pieces)
            except (SandboxFailure, Interrupted, OSError) as error:
                reply, answer = {"broken": f"{type(error).__name__}: {error}"}, []
            except PoolDisconnected:
                return
            messages.send(self._channel, reply, answer)
            if "broken" in reply:
                return

    def _run_cell(self, header: dict[str, Any], pieces: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        """Run a piece of code in the interactive session."""
        driver, code = pieces
        limits = RunLimits(**header["limits"])
        self._limit_group(limits.memory)
        self._session = self._session or Session(self._runner, self._watcher, driver)
        output, ended = self._session.run(code, limits)
        return {"ended": ended}, [output]

    def _judge(self, header: dict[str, Any], pieces: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        source, binary, *inputs = pieces
        job = _Job(
            language=header["language"],
            source=source,
            test_suite=self._suite(header, inputs),
            limits=RunLimits(**header["limits"]),
            stop=Stop(header["stop"]),
            whole=header["whole"],
        )
        self._limit_group(job.limits.memory)
        self._binary, self._diff_sent = b"", False
        try:
            with self._program(job, binary) as program:
                results, shown = self._run_tests(job, program)
        except (CompileFailed, NotPython) as error:
            return {"compile_error": str(error)}, [b""]
        return {"results": results}, [self._binary, *shown]

    def _suite(self, header: dict[str, Any], inputs: list[bytes]) -> _TestSuite:
        name = header["test_suite"]
        if "tests" in header:
            self._suites[name] = _TestSuite(
                header["tests"], inputs, Checker(**header["checker"]), header["checker_language"]
            )
            if len(self._suites) > CACHED_TEST_SUITES:
                _, forgotten = self._suites.popitem(last=False)
                if forgotten.checker_program is not None:
                    os.close(forgotten.checker_program)
        self._suites.move_to_end(name)
        return self._suites[name]

    def _limit_group(self, memory: int) -> None:
        """Set the memory limit of the control group, which holds worker and program together."""
        if self._memory_limit is not None:
            with suppress(OSError):
                os.pwrite(self._memory_limit, str(max(memory, COMPILER_MEMORY) + _GROUP_SLACK).encode(), 0)

    @contextmanager
    def _program(self, job: _Job, binary: bytes) -> Iterator[int | Script]:
        """Provide the program for all tests: a descriptor of a binary, or a script."""
        if job.language["kind"] == "python":
            with closing(Script(job.source)) as script:
                yield script
            return
        program = memory_file(binary, sealed=True) if binary else self._compiled(job)
        try:
            yield program
        finally:
            os.close(program)

    def _compiled(self, job: _Job) -> int:
        program = self._compile(job.source, job.language, job.limits.compile_s)
        self._binary = read_all(program, 1 << 30)
        return program

    def _compile(self, source: bytes, language: dict[str, Any], cpu_s: float) -> int:
        return self._compiler.compile(source, language["file"], language["commands"], language["undeclared"], cpu_s)

    def _run_tests(self, job: _Job, program: int | Script) -> tuple[list[dict[str, Any]], list[bytes]]:
        results, shown, failures = [], [], 0
        for number in range(len(job.test_suite.tests)):
            result = self._run_test(job, program, number)
            failed = result.outcome is not Outcome.ACCEPTED
            failures += failed
            keep = job.whole or (failed and failures <= _SHOWN_FAILURES)
            if keep:
                cut = None if job.whole else _SHOWN
                shown += [result.output[:cut], result.errors[-cut:] if cut else result.errors]
            results.append(_run_header(number, result, shown=keep))
            late = result.outcome is Outcome.TIME_LIMIT
            if (failed and job.stop is Stop.FAILURE) or (late and job.stop is Stop.TIME_LIMIT):
                break
        return results, shown

    def _send_heartbeat(self) -> None:
        if time.monotonic() - self._last_message > _HEARTBEAT_S:
            messages.send(self._channel, {"alive": True})
            self._last_message = time.monotonic()

    def _run_test(self, job: _Job, program: int | Script, number: int) -> Result:
        test = job.test_suite.tests[number]
        data = job.test_suite.inputs[number]
        if test["kind"] == "call":
            return self._runner.calls(job.source, data, test["function"], job.limits)
        if isinstance(program, Script):
            result = self._runner.python(program, data, job.limits)
        else:
            result = self._runner.native(program, data, job.limits, files=job.language["shared"])
        if result.outcome is Outcome.ACCEPTED and not job.whole:
            return self._compared(job, number, result)
        return result

    def _compared(self, job: _Job, number: int, result: Result) -> Result:
        """Check the output: by digest, then by the pool, or by the problem's checker program."""
        suite = job.test_suite
        own = suite.checker.name == "program"  # it alone decides, even if the output equals the expected one
        if not own and digest(self._key, suite.checker, result.output) == suite.tests[number]["expected"]:
            return result
        if suite.tests[number]["digest_decides"] and self._diff_sent:
            return replace(result, outcome=Outcome.WRONG, detail="")
        messages.send(self._channel, {"compare": number}, [result.output])
        answer, pieces = messages.receive(self._channel)
        self._diff_sent = True
        if own:
            accepted, detail = self._ask_checker(suite, suite.inputs[number], result.output, pieces[0])
        else:
            accepted, detail = answer["accepted"], answer["detail"]
        return result if accepted else replace(result, outcome=Outcome.WRONG, detail=detail)

    def _ask_checker(self, suite: _TestSuite, given: bytes, output: bytes, expected: bytes) -> tuple[bool, str]:
        """Run the problem's checker program on files in the scratch directory."""
        program = self._checker_program(suite)
        names = []
        try:
            for name, data in (("input", given), ("output", output), ("answer", expected)):
                names.append(os.path.join(self._jail.scratch, name))
                with open(names[-1], "wb") as file:
                    file.write(data)
            result = self._run_checker(suite, program, tuple(names))
        finally:
            wipe(self._jail.scratch)
        if _checker_verdict(result) is None and output != expected and self._judges_expected(suite, given, expected):
            return False, "the checker cannot read the output"
        words = (result.errors or result.output)[:500].decode(errors="replace").strip()
        accepted = _checker_verdict(result)
        if accepted is None:
            raise SandboxFailure(f"the checker failed ({result.detail or f'exit code {result.exit_code}'}): {words}")
        return accepted, words or "the checker rejects the output"

    def _judges_expected(self, suite: _TestSuite, given: bytes, expected: bytes) -> bool:
        """Whether the checker accepts or rejects the expected output: then the program's output made it fail."""
        try:
            self._ask_checker(suite, given, expected, expected)
        except SandboxFailure:
            return False
        return True

    def _checker_program(self, suite: _TestSuite) -> int | None:
        """Compile the checker; None if it needs no compilation."""
        language = suite.checker_language
        if language is None or language["kind"] == "python" or suite.checker_program is not None:
            return suite.checker_program
        try:
            suite.checker_program = self._compile(encoded(suite.checker.source), language, _CHECKER.compile_s)
        except CompileFailed as error:
            raise SandboxFailure(f"the checker does not compile: {error}") from error
        return suite.checker_program

    def _run_checker(self, suite: _TestSuite, program: int | None, names: tuple[str, ...]) -> Result:
        if program is not None:
            return self._runner.native(program, b"", _CHECKER, arguments=names, files=True)
        try:
            with closing(Script(encoded(suite.checker.source))) as script:
                return self._runner.python(script, b"", _CHECKER, arguments=names)
        except NotPython as error:
            raise SandboxFailure(f"the checker does not compile: {error}") from error


def _checker_verdict(result: Result) -> bool | None:
    return None if result.exit_code is None else parse_checker_score(result.exit_code, result.output)


def _run_header(number: int, result: Result, *, shown: bool) -> dict[str, Any]:
    return {
        "test": number,
        "outcome": result.outcome,
        "cpu_s": result.cpu_s,
        "wall_s": result.wall_s,
        "memory": result.memory,
        "exit_code": result.exit_code,
        "signal": result.signal,
        "detail": result.detail,
        "shown": shown,
    }
