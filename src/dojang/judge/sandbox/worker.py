"""The worker: inside its jail, it compiles a program and runs it on one test after another.

It is told the inputs and, of the expected outputs, only keyed digests; where a digest cannot settle a comparison it
asks the pool. So nothing a program could reach, were it to break out into this process, holds an expected output.
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

from dojang.judge.checkers import normal_form, reads_score
from dojang.judge.sandbox import messages
from dojang.judge.sandbox.compiling import COMPILER_MEMORY, CompileFailed, Compiler
from dojang.judge.sandbox.interpreter_client import Interpreter
from dojang.judge.sandbox.jail import Jail, wipe
from dojang.judge.sandbox.limits import Disturbed, HungUp, Watcher
from dojang.judge.sandbox.run_test import Allowance, NotPython, Result, Runner, Script
from dojang.judge.sandbox.start_process import Broken, memory_file, read_all
from dojang.judge.sandbox.syscall_policy import compiler_filter, native_filter, python_filters
from dojang.programs import Checker, Stop, encoded
from dojang.types import Outcome

__all__ = ["EXAMS", "Worker", "digest"]

EXAMS = 8
"""How many exams a worker remembers. The pool counts along, and sends an exam only when it has been forgotten."""
_HEARTBEAT_S = 5.0
_KEPT = 3
"""Failed tests whose output is shown."""
_SHOWN = 4000
_GROUP_SLACK = 1 << 30
_CHECKER = Allowance(
    cpu_s=30, idle_s=30, memory=1 << 30, output=1 << 20, processes=16, file=1 << 28, stack=1 << 28, compile_s=60
)


def digest(key: bytes, checker: Checker, output: bytes) -> str:
    """What stands for an output where the output itself must not be."""
    return hashlib.blake2b(normal_form(checker, output), key=key, digest_size=16).hexdigest()


@dataclass(slots=True)
class _Exam:
    """What is known here about an exam."""

    tests: list[dict[str, Any]]
    inputs: list[bytes]
    checker: Checker
    checker_language: dict[str, Any] | None
    checker_program: int | None = None


@dataclass(frozen=True, slots=True)
class _Job:
    """One program on one exam."""

    language: dict[str, Any]
    source: bytes
    exam: _Exam
    allowance: Allowance
    stop: Stop
    whole: bool
    """Whether all output is wanted, of every test."""


class Worker:
    """Serves one pool, one submission at a time."""

    def __init__(
        self, channel: socket.socket, spec: dict[str, Any], jail: Jail, *, private_user: bool, memory_limit: int | None
    ) -> None:
        self._channel = channel
        self._last_word = time.monotonic()
        machine = os.uname().machine
        guarded = spec["isolation"] != "none"
        files = spec["isolation"] in ("namespaces", "landlock")
        bare = native_filter(machine) if guarded else None
        with_files = native_filter(machine, files=files) if guarded else None
        watcher = Watcher(jail.proc, channel.fileno(), self._sign_of_life)
        watcher.heed_signals()
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
        self._exams: OrderedDict[str, _Exam] = OrderedDict()
        self._made = b""
        self._explained = False

    def serve(self) -> None:
        """Until the pool hangs up. Anything unexpected ends the worker: a fresh one is cheap, a doubtful one is not."""
        messages.send(self._channel, {"ready": True})
        while True:
            header, pieces = messages.receive(self._channel)
            try:
                reply, answer = self._judge(header, pieces)
            except (Broken, Disturbed, OSError) as error:
                reply, answer = {"broken": f"{type(error).__name__}: {error}"}, []
            except HungUp:
                return
            messages.send(self._channel, reply, answer)
            if "broken" in reply:
                return

    def _judge(self, header: dict[str, Any], pieces: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        source, binary, *inputs = pieces
        job = _Job(
            language=header["language"],
            source=source,
            exam=self._exam(header, inputs),
            allowance=Allowance(**header["limits"]),
            stop=Stop(header["stop"]),
            whole=header["whole"],
        )
        self._limit_group(job.allowance.memory)
        self._made, self._explained = b"", False
        try:
            with self._program(job, binary) as program:
                ran, shown = self._run_tests(job, program)
        except (CompileFailed, NotPython) as error:
            return {"compile_error": str(error)}, [b""]
        return {"ran": ran}, [self._made, *shown]

    def _exam(self, header: dict[str, Any], inputs: list[bytes]) -> _Exam:
        name = header["exam"]
        if "tests" in header:
            self._exams[name] = _Exam(header["tests"], inputs, Checker(**header["checker"]), header["checker_language"])
            if len(self._exams) > EXAMS:
                _, forgotten = self._exams.popitem(last=False)
                if forgotten.checker_program is not None:
                    os.close(forgotten.checker_program)
        self._exams.move_to_end(name)
        return self._exams[name]

    def _limit_group(self, memory: int) -> None:
        """The control group bounds worker and program together."""
        if self._memory_limit is not None:
            with suppress(OSError):
                os.pwrite(self._memory_limit, str(max(memory, COMPILER_MEMORY) + _GROUP_SLACK).encode(), 0)

    @contextmanager
    def _program(self, job: _Job, binary: bytes) -> Iterator[int | Script]:
        """Something to run for every test: a descriptor of a compiled program, or a script."""
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
        program = self._compile(job.source, job.language, job.allowance.compile_s)
        self._made = read_all(program, 1 << 30)
        return program

    def _compile(self, source: bytes, language: dict[str, Any], cpu_s: float) -> int:
        return self._compiler.compile(source, language["file"], language["commands"], language["strange"], cpu_s)

    def _run_tests(self, job: _Job, program: int | Script) -> tuple[list[dict[str, Any]], list[bytes]]:
        ran, shown, failures = [], [], 0
        for number in range(len(job.exam.tests)):
            result = self._run_test(job, program, number)
            failed = result.outcome is not Outcome.ACCEPTED
            failures += failed
            keep = job.whole or (failed and failures <= _KEPT)
            if keep:
                cut = None if job.whole else _SHOWN
                shown += [result.output[:cut], result.errors[-cut:] if cut else result.errors]
            ran.append(_told(number, result, shown=keep))
            late = result.outcome is Outcome.TIME_LIMIT
            if (failed and job.stop is Stop.FAILURE) or (late and job.stop is Stop.TIME_LIMIT):
                break
        return ran, shown

    def _sign_of_life(self) -> None:
        if time.monotonic() - self._last_word > _HEARTBEAT_S:
            messages.send(self._channel, {"alive": True})
            self._last_word = time.monotonic()

    def _run_test(self, job: _Job, program: int | Script, number: int) -> Result:
        test = job.exam.tests[number]
        data = job.exam.inputs[number]
        if test["kind"] == "call":
            return self._runner.calls(job.source, data, test["function"], job.allowance)
        if isinstance(program, Script):
            result = self._runner.python(program, data, job.allowance)
        else:
            result = self._runner.native(program, data, job.allowance, files=job.language["shared"])
        if result.outcome is Outcome.ACCEPTED and not job.whole:
            return self._compared(job, number, result)
        return result

    def _compared(self, job: _Job, number: int, result: Result) -> Result:
        """Whether the output is right: by its digest, else by what the pool says, else by the problem's own checker."""
        exam = job.exam
        own = exam.checker.name == "program"  # it alone decides, even about an output that is as expected
        if not own and digest(self._key, exam.checker, result.output) == exam.tests[number]["expected"]:
            return result
        if exam.tests[number]["complete"] and self._explained:
            return replace(result, outcome=Outcome.WRONG, detail="")
        messages.send(self._channel, {"compare": number}, [result.output])
        answer, pieces = messages.receive(self._channel)
        self._explained = True
        if own:
            accepted, detail = self._ask_checker(exam, exam.inputs[number], result.output, pieces[0])
        else:
            accepted, detail = answer["accepted"], answer["detail"]
        return result if accepted else replace(result, outcome=Outcome.WRONG, detail=detail)

    def _ask_checker(self, exam: _Exam, given: bytes, output: bytes, expected: bytes) -> tuple[bool, str]:
        """Run the problem's own checker, on files in the scratch directory."""
        program = self._checker_program(exam)
        names = []
        try:
            for name, data in (("input", given), ("output", output), ("answer", expected)):
                names.append(os.path.join(self._jail.scratch, name))
                with open(names[-1], "wb") as file:
                    file.write(data)
            result = self._run_checker(exam, program, tuple(names))
        finally:
            wipe(self._jail.scratch)
        if _opinion(result) is None and output != expected and self._copes(exam, given, expected):
            return False, "the checker cannot make sense of it"
        words = (result.errors or result.output)[:500].decode(errors="replace").strip()
        accepted = _opinion(result)
        if accepted is None:
            raise Broken(f"the checker failed ({result.detail or f'exit code {result.exit_code}'}): {words}")
        return accepted, words or "the checker refuses it"

    def _copes(self, exam: _Exam, given: bytes, expected: bytes) -> bool:
        """Whether the checker has an opinion about the expected output: then it was the program's that broke it."""
        try:
            self._ask_checker(exam, given, expected, expected)
        except Broken:
            return False
        return True

    def _checker_program(self, exam: _Exam) -> int | None:
        """The checker compiled; None if there is nothing to compile."""
        language = exam.checker_language
        if language is None or language["kind"] == "python" or exam.checker_program is not None:
            return exam.checker_program
        try:
            exam.checker_program = self._compile(encoded(exam.checker.source), language, _CHECKER.compile_s)
        except CompileFailed as error:
            raise Broken(f"the checker does not compile: {error}") from error
        return exam.checker_program

    def _run_checker(self, exam: _Exam, program: int | None, names: tuple[str, ...]) -> Result:
        if program is not None:
            return self._runner.native(program, b"", _CHECKER, arguments=names, files=True)
        try:
            with closing(Script(encoded(exam.checker.source))) as script:
                return self._runner.python(script, b"", _CHECKER, arguments=names)
        except NotPython as error:
            raise Broken(f"the checker does not compile: {error}") from error


def _opinion(result: Result) -> bool | None:
    return None if result.exit_code is None else reads_score(result.exit_code, result.output)


def _told(number: int, result: Result, *, shown: bool) -> dict[str, Any]:
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
