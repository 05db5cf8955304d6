"""One worker process as the pool sees it: started, fed one submission at a time, and put away when in doubt."""

import os
import socket
import struct
import subprocess
from collections import OrderedDict
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from dojang.judge.checkers import compare, complete
from dojang.judge.host_capabilities import Premises, bare_python
from dojang.judge.sandbox import messages
from dojang.judge.sandbox.cleanup import sweep
from dojang.judge.sandbox.worker import EXAMS, digest
from dojang.programs import CallTest, Exam, IoTest, Limits, Ran, encoded
from dojang.types import Outcome

__all__ = ["CompileError", "Link", "WorkerFailed"]

_SILENCE_S = 300.0
"""A worker speaks every few seconds; after this long it is taken for dead."""


class WorkerFailed(Exception):
    """The worker, not the program, failed."""


class CompileError(Exception):
    """The program does not compile."""


class Link:
    """A worker. It must be closed; one that raised WorkerFailed is of no further use."""

    def __init__(self, premises: Premises) -> None:
        self._premises = premises
        self._exams: OrderedDict[str, None] = OrderedDict()
        self._channel, theirs = socket.socketpair()
        command = bare_python("dojang.judge.sandbox.supervisor:main", str(theirs.fileno()), str(os.getpid()))
        try:
            # Popen starts it by vfork: forking would copy the page tables of a process as large as a trainer.
            self._process = subprocess.Popen(
                command,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.PIPE,  # closed to say that it is over: a worker that was stopped hears nothing
                stdout=subprocess.DEVNULL,
                cwd="/",
                env={name: os.environ[name] for name in ("TMPDIR",) if name in os.environ},
                process_group=0,  # what the terminal says to the trainer is not for judged programs
            )
        except OSError as error:
            self._channel.close()
            raise WorkerFailed(f"a worker cannot be started: {error}") from error
        finally:
            theirs.close()
        self._channel.settimeout(_SILENCE_S)
        try:
            messages.send(self._channel, premises.spec)
            self._hear()
        except BaseException as error:
            self.close()
            if isinstance(error, messages.Closed | OSError):
                raise WorkerFailed(f"a worker cannot be started: {error}") from error
            raise

    def judge(
        self, how: dict[str, Any], source: bytes, binary: bytes, exam: Exam, stop: str, *, whole: bool = False
    ) -> tuple[list[Ran], bytes, list[tuple[bytes, bytes]]]:
        """Run the tests: what each came to, the compiled program if it was compiled now, and outputs that were kept."""
        header: dict[str, Any] = {
            "language": how,
            "exam": exam.digest,
            "limits": _allowance(exam.limits),
            "stop": stop,
            "whole": whole,
        }
        pieces = [source, binary]
        if exam.digest not in self._exams:
            header |= self._introduction(exam)
            pieces += [encoded(test.input if isinstance(test, IoTest) else test.code) for test in exam.tests]
        self._remember(exam.digest)
        try:
            messages.send(self._channel, header, pieces)
            answer, shown = self._hear(exam)
        except (messages.Closed, OSError) as error:
            raise WorkerFailed(f"the worker was lost: {type(error).__name__}: {error}") from error
        if "compile_error" in answer:
            raise CompileError(answer["compile_error"])
        made, *outputs = shown
        kept = list(zip(outputs[::2], outputs[1::2], strict=True))
        return _ran(answer["ran"], kept), made, kept

    def close(self) -> None:
        """Hang up; the supervisor sees to the rest. Returns when nothing is left."""
        self.hang_up()  # closing is not enough where a child of this process has inherited the channel
        self._channel.close()
        if self._process.stdin:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.returncode:  # killed: it could not clean up
            sweep(self._process.pid)

    def hang_up(self) -> None:
        """Make whoever waits for this worker stop waiting. May be called from another thread."""
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)

    def _introduction(self, exam: Exam) -> dict[str, Any]:
        checker = exam.checker
        return {
            "tests": [self._described(exam, test) for test in exam.tests],
            "checker": asdict(checker),
            "checker_language": self._premises.how_to_run(checker.language, checker.source) if checker.source else None,
        }

    def _described(self, exam: Exam, test: IoTest | CallTest) -> dict[str, Any]:
        if isinstance(test, CallTest):
            return {"kind": "call", "function": test.function}
        expected = encoded(test.output)
        return {
            "kind": "io",
            "expected": digest(self._premises.key, exam.checker, expected),
            "complete": complete(exam.checker, expected),
        }

    def _remember(self, name: str) -> None:
        """Exactly as the worker does."""
        self._exams[name] = None
        if len(self._exams) > EXAMS:
            self._exams.popitem(last=False)
        self._exams.move_to_end(name)

    def _hear(self, exam: Exam | None = None) -> tuple[dict[str, Any], list[bytes]]:
        """The worker's final word; on the way there, its questions are answered."""
        while True:
            try:
                answer, pieces = messages.receive(self._channel)
            except messages.Closed as error:
                raise WorkerFailed(f"the worker died: {error}") from error
            except (ValueError, struct.error) as error:
                raise WorkerFailed(f"the worker babbles: {error}") from error
            except TimeoutError as error:
                raise WorkerFailed(f"the worker said nothing for {_SILENCE_S:g} s") from error
            if "broken" in answer:
                raise WorkerFailed(answer["broken"])
            if "compare" in answer and exam is not None:
                self._compare(exam, answer["compare"], pieces[0])
            elif "alive" not in answer:
                return answer, pieces

    def _compare(self, exam: Exam, number: int, output: bytes) -> None:
        test = exam.tests[number]
        assert isinstance(test, IoTest)
        expected = encoded(test.output)
        if exam.checker.name == "program":
            messages.send(self._channel, {}, [expected])
            return
        difference = compare(exam.checker, expected, output)
        messages.send(self._channel, {"accepted": difference is None, "detail": difference or ""})


def _allowance(limits: Limits) -> dict[str, float]:
    return {
        "cpu_s": limits.cpu_s,
        "idle_s": limits.idle_s,
        "memory": limits.memory_mb << 20,
        "output": int(limits.output_mb * 2**20),
        "processes": limits.processes,
        "file": int(limits.file_mb * 2**20),
        "stack": limits.stack_bytes,
        "compile_s": limits.compile_s,
    }


def _ran(told: list[dict[str, Any]], kept: list[tuple[bytes, bytes]]) -> list[Ran]:
    shown = iter(kept)
    ran = []
    for each in told:
        output, errors = next(shown) if each["shown"] else (b"", b"")
        ran.append(
            Ran(
                test=each["test"],
                outcome=Outcome(each["outcome"]),
                cpu_s=round(each["cpu_s"], 6),
                wall_s=round(each["wall_s"], 6),
                memory_mb=round(each["memory"] / 2**20, 3),
                exit_code=each["exit_code"],
                signal=each["signal"],
                detail=each["detail"],
                output=output[:4000].decode(errors="replace"),
                errors=errors.decode(errors="replace"),
            )
        )
    return ran
