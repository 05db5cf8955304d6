"""The judge of this machine: a few worker processes, one submission at a time each.

Submissions for one exam wait in a lane of their own, and lanes take turns: a problem whose programs all run into the
time limit does not hold up the others. Identical submissions are judged once, and remembered; so are compiled
programs. A worker that fails is replaced and the submission tried again on a fresh one; what keeps failing is a
JUDGE_ERROR, never a verdict.

A caller waits for its judgement, so whoever submits faster than programs are judged is slowed down. Not covered:
running the tests of one program on several workers.
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
from dojang.judge.execution import Execution
from dojang.judge.host_capabilities import Premises
from dojang.judge.sandbox.cleanup import sweep
from dojang.judge.worker_handle import CompileError, Link
from dojang.judge.worker_pool import Crew, Work
from dojang.programs import Exam, IoTest, Isolation, Judgement, Limits, Ran, Submission, encoded, fold
from dojang.types import Outcome

__all__ = ["JudgePool"]

_VERDICTS = 4096
_BINARIES = 64 << 20
_WORDS = 2000


@dataclass(slots=True)
class _Pending:
    """A submission being judged, and how many wait for it."""

    work: Work
    waiters: int = 0


class JudgePool:
    """The Judge of this file. Workers start when they are first needed."""

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
            raise ConfigError(f"judge.isolation={isolation!r} is unknown; there is auto, {', '.join(Isolation)}")
        self.premises = Premises(isolation, python, cache, tuple(packages))
        self.workers = workers or len(os.sched_getaffinity(0))
        self._crew = Crew(self.workers, self._start)
        self._lock = threading.RLock()  # work that is given up at once settles while it is being submitted
        self._looking = threading.Lock()
        self._looked = False
        self._verdicts: OrderedDict[str, Judgement] = OrderedDict()
        self._pending: dict[str, _Pending] = {}
        self._binaries = _Binaries()

    @property
    def isolation(self) -> Isolation:
        """What programs are kept in by. ConfigError if what was asked for cannot be had."""
        return self.premises.isolation

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def judge(self, submission: Submission) -> Judgement:
        started = time.perf_counter()
        name = await asyncio.to_thread(lambda: submission.digest)  # an exam may be many megabytes
        with self._lock:
            known = self._verdicts.get(name)
            work = known or self._join(name, submission)
        judgement = work if isinstance(work, Judgement) else await self._wait(work)
        return replace(judgement, seconds=time.perf_counter() - started)

    async def run(self, language: str, source: str, stdin: str, limits: Limits) -> Execution:
        """Run a program once and return everything it wrote."""
        submission = Submission(language, source, Exam((IoTest(stdin, ""),), limits))
        work = Work(language, lambda link: self._execute(link, submission), _failed_execution)
        self._crew.put(work)
        execution: Execution = await asyncio.wrap_future(work.done)
        return execution

    async def close(self) -> None:
        """Nothing is left running when this returns."""
        await asyncio.to_thread(self._crew.close)

    def _start(self) -> Link:
        with self._looking:  # the machine is looked over, and cleaned up after others, once
            if not self._looked:
                sweep()
                self.premises.spec  # noqa: B018
                self._looked = True
        return Link(self.premises)

    def _join(self, name: str, submission: Submission) -> _Pending:
        """Wait for the same submission of somebody else's, or start it."""
        pending = self._pending.get(name)
        if pending is None:
            work = Work(
                submission.exam.digest,
                lambda link: self._judge(link, submission),
                lambda reason: self._judgement(submission, Outcome.JUDGE_ERROR, detail=reason),
            )
            pending = self._pending[name] = _Pending(work)
            work.done.add_done_callback(lambda done: self._settle(name, done))
            self._crew.put(work)
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
                    pending.work.done.cancel()  # if it has not begun; under the lock, or another might just join
            raise

    def _settle(self, name: str, done: "Future[Judgement]") -> None:
        with self._lock:
            self._pending.pop(name, None)
            if done.cancelled() or done.result().outcome is Outcome.JUDGE_ERROR:
                return
            self._verdicts[name] = done.result()
            if len(self._verdicts) > _VERDICTS:
                self._verdicts.popitem(last=False)

    def _judge(self, link: Link, submission: Submission) -> Judgement:
        self.premises.refuse_unfit(submission)
        try:
            ran, _ = self._run(link, submission)
        except CompileError as error:
            return self._judgement(submission, Outcome.COMPILE_ERROR, detail=str(error)[:_WORDS])
        judgement = self._judgement(submission, fold(ran), ran=tuple(ran))
        first = judgement.first_failure
        return replace(judgement, detail=f"test {first.test}: {first.detail}"[:_WORDS]) if first else judgement

    def _execute(self, link: Link, submission: Submission) -> Execution:
        try:
            ran, outputs = self._run(link, submission, whole=True)
        except CompileError as error:
            return Execution(False, str(error), None, b"", b"", Outcome.COMPILE_ERROR)
        stdout, stderr = outputs[0]
        return Execution(True, "", ran[0], stdout, stderr, ran[0].outcome)

    def _run(
        self, link: Link, submission: Submission, *, whole: bool = False
    ) -> tuple[list[Ran], list[tuple[bytes, bytes]]]:
        source = encoded(submission.source)
        key = (submission.language, submission.source)
        binary = self._binaries.get(key)
        how = self.premises.how_to_run(submission.language, submission.source)
        ran, made, outputs = link.judge(how, source, binary, submission.exam, submission.stop, whole=whole)
        if made:
            self._binaries.put(key, made)
        return ran, outputs

    def _judgement(
        self, submission: Submission, outcome: Outcome, *, ran: tuple[Ran, ...] = (), detail: str = ""
    ) -> Judgement:
        return Judgement(outcome, ran, len(submission.exam.tests), self._level(), detail)

    def _level(self) -> Isolation:
        try:
            return self.premises.isolation
        except ConfigError:
            return Isolation.NONE  # nothing was run


class _Binaries:
    """Compiled programs by their sources, the least recently used forgotten first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, key: tuple[str, str]) -> bytes:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key, b"")

    def put(self, key: tuple[str, str], binary: bytes) -> None:
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = binary
            self._size += len(binary)
            while self._size > _BINARIES and self._kept:
                self._size -= len(self._kept.popitem(last=False)[1])


def _failed_execution(reason: str) -> Execution:
    return Execution(False, reason, None, b"", b"", Outcome.JUDGE_ERROR)
