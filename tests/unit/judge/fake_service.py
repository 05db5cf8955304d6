"""A fake judge controlled by the program's text, and services that run it."""

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from dojang.judge.execution import Execution
from dojang.judge.server import serve
from dojang.judge.service import ServiceOptions
from dojang.programs import Isolation, Judgement, Limits, Submission, TestResult
from dojang.types import Outcome

PATIENCE = 60.0
"""Timeout for things that should happen at once, long enough for a busy machine."""


class FakeJudge:
    """Accepts "right" and rejects anything else; "wait" waits to be released, "raise" raises."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.seen: list[Submission] = []
        self.ran: list[tuple[str, str, str, Limits]] = []
        self.cancelled = 0
        self.closed = 0

    async def judge(self, submission: Submission) -> Judgement:
        self.seen.append(submission)
        total = len(submission.test_suite.tests)
        if submission.source == "wait":
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            if self.closed:
                return Judgement(Outcome.JUDGE_ERROR, (), total, Isolation.SECCOMP, "closed")
        if submission.source == "raise":
            raise ValueError("the machinery broke")
        outcome = Outcome.ACCEPTED if submission.source in ("right", "wait") else Outcome.WRONG
        results = tuple(TestResult(index, outcome) for index in range(total))
        return Judgement(outcome, results, total, Isolation.SECCOMP)

    async def run(self, language: str, source: str, stdin: str, limits: Limits) -> Execution:
        self.ran.append((language, source, stdin, limits))
        match source:
            case "compile error":
                return Execution(False, "expected ';'", None, b"", b"", Outcome.COMPILE_ERROR)
            case "compile forever":
                return Execution(False, "", None, b"", b"", Outcome.TIME_LIMIT)
            case "crash":
                result = TestResult(0, Outcome.RUNTIME_ERROR, wall_s=0.1, signal="SIGSEGV")
                return Execution(True, "", result, b"some", b"Segmentation fault", Outcome.RUNTIME_ERROR)
            case "exit 3":
                result = TestResult(0, Outcome.RUNTIME_ERROR, wall_s=0.1, exit_code=3)
                return Execution(True, "", result, b"", b"no", Outcome.RUNTIME_ERROR)
            case "too much memory":
                result = TestResult(0, Outcome.MEMORY_LIMIT, exit_code=0, detail="over 256 MB")
                return Execution(True, "", result, b"", b"", Outcome.MEMORY_LIMIT)
            case "loop":
                result = TestResult(0, Outcome.TIME_LIMIT, wall_s=2.5, signal="SIGKILL")
                return Execution(True, "", result, b"so far", b"", Outcome.TIME_LIMIT)
            case "judge error":
                return Execution(False, "no compiler", None, b"", b"", Outcome.JUDGE_ERROR)
            case "raise":
                raise ValueError("the machinery broke")
            case "wait":
                await self.release.wait()
        result = TestResult(0, Outcome.ACCEPTED, wall_s=0.25, exit_code=0)
        return Execution(True, "a warning", result, stdin.encode() + b"\xff", b"", Outcome.ACCEPTED)

    async def close(self) -> None:
        self.closed += 1
        self.release.set()


class RunningService:
    """A service on a loopback port, in a separate thread."""

    def __init__(self, options: ServiceOptions, port: int = 0, drain_s: float = PATIENCE) -> None:
        self.url = ""
        self.judge: FakeJudge
        self._options = options
        self._port = port
        self._drain_s = drain_s
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.judge = FakeJudge()

        def announce(url: str) -> None:
            self.url = url
            self._up.set()

        await serve(
            self.judge, self._options, port=self._port, drain_s=self._drain_s, announce=announce, stop=self._stop
        )

    def call(self, function: Callable[[], object]) -> None:
        """Call it in the service's thread."""
        self._loop.call_soon_threadsafe(function)

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait until the condition holds in the service's thread."""

        async def poll() -> None:
            while not condition():
                await asyncio.sleep(0.005)

        asyncio.run_coroutine_threadsafe(poll(), self._loop).result(PATIENCE)

    def begin_to_stop(self) -> None:
        self.call(self._stop.set)

    def stop(self) -> None:
        if self._thread.is_alive():
            self.call(self.judge.release.set)
            self.begin_to_stop()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def __enter__(self) -> "RunningService":
        self._thread.start()
        assert self._up.wait(PATIENCE)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


def until(condition: Callable[[], object]) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


SCRIPT = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from fake_service import FakeJudge
from dojang.judge.server import serve
from dojang.judge.service import ServiceOptions

async def main():
    judge = FakeJudge()
    await serve(judge, ServiceOptions(), port=int(sys.argv[2]), announce=lambda url: print(url, flush=True))
    print("closed", judge.closed, flush=True)

asyncio.run(main())
"""


@contextmanager
def service_process(port: int = 0) -> "Iterator[tuple[subprocess.Popen[str], str]]":
    """A service in a separate process, and its URL."""
    command = [sys.executable, "-W", "error", "-c", SCRIPT, str(Path(__file__).parent), str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def request(source: str = "right", **fields: Any) -> bytes:
    suite = {"tests": [{"input": "1", "output": "1"}]}
    return json.dumps({"language": "python", "source": source, "test_suite": suite, **fields}).encode()
