"""The judge of this machine: a pool of worker processes that judge one submission at a time each.

Submissions for one test suite (that of a problem) share a lane, and lanes are served round-robin: a problem whose
programs all hit the time limit does not delay the others. Verdicts and compiled programs are cached, and identical
submissions in flight are judged once. If a worker fails, a new worker retries the submission; after repeated failures
the outcome is JUDGE_ERROR, never a verdict about the program.

Each caller waits for its judgement, which is the back-pressure on fast submitters. The tests of one program run on
one worker, never on several.
"""

import asyncio
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from dojang.core.errors import ConfigError
from dojang.judge.byte_cache import ByteCache
from dojang.judge.execution import Execution
from dojang.judge.host_capabilities import HostCapabilities
from dojang.judge.sandbox.cleanup import sweep
from dojang.judge.worker_handle import CompileError, WorkerHandle
from dojang.judge.worker_pool import Work, WorkerPool
from dojang.programs import IoTest, Isolation, Judgement, Limits, Submission, TestResult, TestSuite, encoded, fold
from dojang.types import Outcome

__all__ = ["JudgePool"]

_VERDICTS = 4096
_BINARIES = 64 << 20
_WORDS = 2000


@dataclass(slots=True)
class _Pending:
    """A submission in flight, and the number of callers that wait for it."""

    work: Work
    waiters: int = 0


class JudgePool:
    """Judge on this machine's processors. Workers start on demand."""

    def __init__(
        self,
        *,
        cache: Path,
        workers: int = 0,
        isolation: str = "auto",
        python: str = "",
        packages: Sequence[str] = (),
    ) -> None:
        if isolation not in ("auto", *Isolation):
            raise ConfigError(f"judge.isolation={isolation!r} is unknown; choose auto, {', '.join(Isolation)}")
        self.host = HostCapabilities(isolation, python, cache, tuple(packages))
        self.workers = workers or len(os.sched_getaffinity(0))
        self._worker_pool = WorkerPool(self.workers, self._start)
        self._lock = threading.RLock()  # reentrant: work that is given up at once settles inside put()
        self._setup_lock = threading.Lock()
        self._set_up = False
        self._verdicts: OrderedDict[str, Judgement] = OrderedDict()
        self._pending: dict[str, _Pending] = {}
        self._binaries = ByteCache[tuple[str, str], bytes](_BINARIES)

    @property
    def isolation(self) -> Isolation:
        """Isolation level of judged programs. Raises ConfigError if the requested one is not available."""
        return self.host.isolation

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def judge(self, submission: Submission) -> Judgement:
        started = time.perf_counter()
        name = await asyncio.to_thread(lambda: submission.digest)  # hashing many megabytes of tests takes a while
        with self._lock:
            known = self._verdicts.get(name)
            work = known or self._join(name, submission)
        judgement = work if isinstance(work, Judgement) else await self._wait(work)
        return replace(judgement, seconds=time.perf_counter() - started)

    async def run(self, language: str, source: str, stdin: str, limits: Limits) -> Execution:
        submission = Submission(language, source, TestSuite((IoTest(stdin, ""),), limits))
        work = Work(language, lambda worker: self._execute(worker, submission), _failed_execution)
        self._worker_pool.put(work)
        execution: Execution = await asyncio.wrap_future(work.done)
        return execution

    async def close(self) -> None:
        """Stop all workers; nothing runs any more when this returns."""
        await asyncio.to_thread(self._worker_pool.close)

    def _start(self) -> WorkerHandle:
        with self._setup_lock:  # once per pool: remove leftovers of dead supervisors and examine the machine
            if not self._set_up:
                sweep()
                self.host.spec  # noqa: B018
                self._set_up = True
        return WorkerHandle(self.host)

    def _join(self, name: str, submission: Submission) -> _Pending:
        """Join an identical submission in flight, or start this one."""
        pending = self._pending.get(name)
        if pending is None:
            work = Work(
                submission.test_suite.digest,
                lambda worker: self._judge(worker, submission),
                lambda reason: self._judgement(submission, Outcome.JUDGE_ERROR, detail=reason),
            )
            pending = self._pending[name] = _Pending(work)
            work.done.add_done_callback(lambda done: self._settle(name, done))
            self._worker_pool.put(work)
        pending.waiters += 1
        return pending

    async def _wait(self, pending: _Pending) -> Judgement:
        try:
            judgement: Judgement = await asyncio.shield(asyncio.wrap_future(pending.work.done))
            return judgement
        except asyncio.CancelledError:
            with self._lock:
                pending.waiters -= 1
                if pending.waiters == 0:
                    pending.work.done.cancel()  # if not started; under the lock: no caller joins meanwhile
            raise

    def _settle(self, name: str, done: "Future[Judgement]") -> None:
        with self._lock:
            self._pending.pop(name, None)
            if done.cancelled() or done.result().outcome is Outcome.JUDGE_ERROR:
                return
            self._verdicts[name] = done.result()
            if len(self._verdicts) > _VERDICTS:
                self._verdicts.popitem(last=False)

    def _judge(self, worker: WorkerHandle, submission: Submission) -> Judgement:
        self.host.check_supported(submission)
        try:
            results, _ = self._run(worker, submission)
        except CompileError as error:
            return self._judgement(submission, Outcome.COMPILE_ERROR, detail=str(error)[:_WORDS])
        judgement = self._judgement(submission, fold(results), results=tuple(results))
        first = judgement.first_failure
        return replace(judgement, detail=f"test {first.test}: {first.detail}"[:_WORDS]) if first else judgement

    def _execute(self, worker: WorkerHandle, submission: Submission) -> Execution:
        try:
            results, outputs = self._run(worker, submission, whole=True)
        except CompileError as error:
            return Execution(False, str(error), None, b"", b"", Outcome.COMPILE_ERROR)
        stdout, stderr = outputs[0]
        return Execution(True, "", results[0], stdout, stderr, results[0].outcome)

    def _run(
        self, worker: WorkerHandle, submission: Submission, *, whole: bool = False
    ) -> tuple[list[TestResult], list[tuple[bytes, bytes]]]:
        source = encoded(submission.source)
        key = (submission.language, submission.source)
        binary = self._binaries.get(key) or b""
        how = self.host.launch_spec(submission.language, submission.source)
        results, made, outputs = worker.judge(how, source, binary, submission.test_suite, submission.stop, whole=whole)
        if made:
            self._binaries.put(key, made, len(made))
        return results, outputs

    def _judgement(
        self, submission: Submission, outcome: Outcome, *, results: tuple[TestResult, ...] = (), detail: str = ""
    ) -> Judgement:
        return Judgement(outcome, results, len(submission.test_suite.tests), self._level(), detail)

    def _level(self) -> Isolation:
        try:
            return self.host.isolation
        except ConfigError:
            return Isolation.NONE  # nothing was run


def _failed_execution(reason: str) -> Execution:
    return Execution(False, reason, None, b"", b"", Outcome.JUDGE_ERROR)
