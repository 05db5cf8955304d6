"""Handle of one worker process: starts it, sends it one submission at a time, stops it after any doubt."""

from collections import OrderedDict
from dataclasses import asdict
from typing import Any

from dojang.judge.checkers import compare, digest_decides
from dojang.judge.host_capabilities import HostCapabilities
from dojang.judge.sandbox import messages
from dojang.judge.sandbox.worker import CACHED_TEST_SUITES, digest
from dojang.judge.supervised_worker import SupervisedWorker, WorkerFailed
from dojang.programs import CallTest, IoTest, Limits, TestResult, TestSuite, encoded
from dojang.types import Outcome

__all__ = ["CompileError", "WorkerFailed", "WorkerHandle"]

_TIMEOUT_S = 300.0
"""Timeout for a worker's next message. A worker sends one every few seconds."""


class CompileError(Exception):
    """The program does not compile."""


class WorkerHandle(SupervisedWorker):
    """One worker process. The caller must close it; after WorkerFailed it cannot be used again."""

    def __init__(self, host: HostCapabilities) -> None:
        self._host = host
        self._suites: OrderedDict[str, None] = OrderedDict()
        super().__init__(host.spec, _TIMEOUT_S)

    def judge(
        self, how: dict[str, Any], source: bytes, binary: bytes, suite: TestSuite, stop: str, *, whole: bool = False
    ) -> tuple[list[TestResult], bytes, list[tuple[bytes, bytes]]]:
        """Run the tests. Returns their results, the binary if it was compiled now, and the outputs kept."""
        header: dict[str, Any] = {
            "language": how,
            "test_suite": suite.digest,
            "limits": _run_limits(suite.limits),
            "stop": stop,
            "whole": whole,
        }
        pieces = [source, binary]
        if suite.digest not in self._suites:
            header |= self._suite_header(suite)
            pieces += [encoded(test.input if isinstance(test, IoTest) else test.code) for test in suite.tests]
        self._cache_suite(suite.digest)
        try:
            messages.send(self.channel, header, pieces)
            answer, shown = self._receive(suite)
        except (messages.Closed, OSError) as error:
            raise WorkerFailed(f"the worker was lost: {type(error).__name__}: {error}") from error
        if "compile_error" in answer:
            raise CompileError(answer["compile_error"])
        made, *outputs = shown
        kept = list(zip(outputs[::2], outputs[1::2], strict=True))
        return _parse_results(answer["results"], kept), made, kept

    def run_cell(self, driver: bytes, code: bytes, limits: Limits) -> tuple[bytes, str]:
        """Run a piece of code in the worker's interactive session (sandbox/session.py). Returns its output, and why
        the interpreter ended, if it did."""
        try:
            messages.send(self.channel, {"cell": True, "limits": _run_limits(limits)}, [driver, code])
            answer, (output,) = self._receive()
        except (messages.Closed, OSError) as error:
            raise WorkerFailed(f"the worker was lost: {type(error).__name__}: {error}") from error
        return output, answer["ended"]

    def _suite_header(self, suite: TestSuite) -> dict[str, Any]:
        checker = suite.checker
        return {
            "tests": [self._test_header(suite, test) for test in suite.tests],
            "checker": asdict(checker),
            "checker_language": self._host.launch_spec(checker.language, checker.source) if checker.source else None,
        }

    def _test_header(self, suite: TestSuite, test: IoTest | CallTest) -> dict[str, Any]:
        if isinstance(test, CallTest):
            return {"kind": "call", "function": test.function}
        expected = encoded(test.output)
        return {
            "kind": "io",
            "expected": digest(self._host.key, suite.checker, expected),
            "digest_decides": digest_decides(suite.checker, expected),
        }

    def _cache_suite(self, name: str) -> None:
        """Mirror the worker's own cache of test suites."""
        self._suites[name] = None
        if len(self._suites) > CACHED_TEST_SUITES:
            self._suites.popitem(last=False)
        self._suites.move_to_end(name)

    def _receive(self, suite: TestSuite | None = None) -> tuple[dict[str, Any], list[bytes]]:
        """Return the worker's final message; answer the comparisons it asks for on the way."""
        while True:
            answer, pieces = self.receive()
            if "compare" in answer and suite is not None:
                self._compare(suite, answer["compare"], pieces[0])
            elif "alive" not in answer:
                return answer, pieces

    def _compare(self, suite: TestSuite, number: int, output: bytes) -> None:
        test = suite.tests[number]
        assert isinstance(test, IoTest)
        expected = encoded(test.output)
        if suite.checker.name == "program":
            messages.send(self.channel, {}, [expected])
            return
        difference = compare(suite.checker, expected, output)
        messages.send(self.channel, {"accepted": difference is None, "detail": difference or ""})


def _run_limits(limits: Limits) -> dict[str, float]:
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


def _parse_results(reported: list[dict[str, Any]], kept: list[tuple[bytes, bytes]]) -> list[TestResult]:
    shown = iter(kept)
    results = []
    for each in reported:
        output, errors = next(shown) if each["shown"] else (b"", b"")
        results.append(
            TestResult(
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
    return results
