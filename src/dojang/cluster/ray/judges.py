"""A Judge over all nodes of the cluster: programs, and answers that worker processes verify.

Large test suites are put into the object store once and fetched once by each node; submissions then refer to them by
digest. If an actor or its node is lost, another judges the submission again; the caller gets exactly one result. If no
actor can judge it, the result is a JUDGE_ERROR with the reason.

Each node's judge caches equal submissions; two nodes may judge the same one twice.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

import ray

from dojang.cluster.ray.actors import ActorLost
from dojang.cluster.ray.judge_pool import JudgeActorPool, JudgeWorker
from dojang.cluster.ray.placement import node_is_gone
from dojang.core.errors import JudgeError
from dojang.judge.byte_cache import ByteCache
from dojang.programs import IoTest, Isolation, Judgement, Stop, Submission, TestSuite
from dojang.protocols import Judge, Task
from dojang.types import Outcome, Problem, Verdict

__all__ = ["JudgeActor", "RayJudge", "RayTask"]

V = TypeVar("V")

_MAX_TRIES = 2
"""Tries before a JUDGE_ERROR is returned. A worker that has just failed is chosen only if no other is free."""
_LARGE = 1 << 16
"""Characters above which a test suite goes through the object store instead of with every submission."""
_CACHE_CHARS = 256 << 20
"""Limit of large test suites in the object store, and on each node, in characters."""


class _FutureCache(Generic[V]):
    """LRU cache with a size limit. Concurrent requests for one entry make it once."""

    def __init__(self) -> None:
        self._entries = ByteCache[str, asyncio.Future[V]](_CACHE_CHARS)

    def __contains__(self, name: str) -> bool:
        entry = self._entries.get(name)
        return entry is not None and not entry.cancelled()

    async def get(self, name: str, size: int, make: Callable[[], Coroutine[Any, Any, V]]) -> V:
        entry = self._entries.get(name)
        if entry is None or entry.cancelled():
            self._entries.discard(name)
            entry = asyncio.ensure_future(make())
            self._entries.put(name, entry, size)
        try:
            return await asyncio.shield(entry)
        except Exception:
            self._entries.discard(name)
            raise


class JudgeActor:
    """The judge inside the actor."""

    def __init__(self, judge: Judge, task: Task | None) -> None:
        """`task` grades answers that are not programs."""
        self._judge, self._task = judge, task
        self._suites: _FutureCache[TestSuite] = _FutureCache()

    async def judge(self, submission: Submission) -> Judgement:
        return await self._judge.judge(submission)

    async def judge_by_digest(
        self, language: str, source: str, stop: Stop, digest: str, where: tuple[Any, int] | None
    ) -> Judgement | None:
        """Judges by a cached test suite, or by one fetched from the object store; None if it has neither."""
        if where is None and digest not in self._suites:
            return None
        reference, size = where or (None, 0)
        suite = await self._suites.get(digest, size, partial(_fetch, reference))
        return await self._judge.judge(Submission(language, source, suite, stop))

    async def grade(self, problem: Problem, text: str) -> Verdict:
        assert self._task is not None, "this task's answers are programs"
        return await self._task.grade(problem, text)

    async def close(self) -> None:
        await self._judge.close()


class RayJudge:
    """A Judge over all nodes. Its actors start at the first submission."""

    def __init__(
        self, factory: Callable[[int], Callable[..., JudgeActor]], *shared: Any, max_per_node: int = 0, timeout_s: float
    ) -> None:
        """Takes the arguments of JudgeActorPool."""
        self._timeout_s = timeout_s
        self._pool = JudgeActorPool(factory, *shared, check=self._check, max_per_node=max_per_node, timeout_s=timeout_s)
        self._suites: _FutureCache[Any] = _FutureCache()
        self._checks: list[Submission] = []

    async def judge(self, submission: Submission) -> Judgement:
        started = time.perf_counter()
        try:
            size = _size(submission.test_suite)
            if size > _LARGE:
                await asyncio.to_thread(lambda: submission.test_suite.digest)  # hashes megabytes: not on the event loop
            for _ in range(_MAX_TRIES):
                judgement = await self._pool.ask(
                    submission.test_suite.digest, lambda worker: self._judge_on(worker, submission, size)
                )
                if judgement.outcome is not Outcome.JUDGE_ERROR:
                    break
        except Exception as error:  # a judge always returns a judgement
            text = str(error) or repr(error)
            judgement = Judgement(Outcome.JUDGE_ERROR, (), len(submission.test_suite.tests), Isolation.NONE, text)
        return replace(judgement, seconds=time.perf_counter() - started)

    async def judge_on_every_node(self, submission: Submission) -> list[tuple[str, Judgement]]:
        """Judges a submission on every node; returns addresses and judgements. A node that joins later must accept the
        submission too before it gets work."""
        workers = await self._pool.open()
        found = await asyncio.gather(*(self._check_on(worker, submission) for worker in workers))
        self._checks.append(submission)
        judged = zip(workers, found, strict=True)
        return [(worker.node.address, judgement) for worker, judgement in judged if judgement is not None]

    async def _check_on(self, worker: JudgeWorker, submission: Submission) -> Judgement | None:
        """Judges on one worker; None if its node is lost meanwhile."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._judge_on(worker, submission, _size(submission.test_suite))
        except (ActorLost, TimeoutError) as error:
            text = str(error) or f"no answer within {self._timeout_s:g} s"
        if await node_is_gone(worker.node):
            return None
        return Judgement(Outcome.JUDGE_ERROR, (), len(submission.test_suite.tests), Isolation.NONE, text)

    async def open(self) -> None:
        """Starts judging on all nodes; raises an error if one cannot."""
        await self._pool.open()

    async def grade(self, problem: Problem, text: str) -> Verdict:
        """Grades an answer with the actors' task."""

        async def graded(worker: JudgeWorker) -> Verdict:
            verdict: Verdict = await worker.call("grade", problem, text)
            worker.failures = worker.failures + 1 if verdict.outcome is Outcome.JUDGE_ERROR else 0
            return verdict

        return await self._pool.ask(problem.id, graded)

    async def close(self) -> None:
        await self._pool.close()

    async def _check(self, worker: JudgeWorker) -> None:
        for check in self._checks:
            judgement = await self._judge_on(worker, check, _size(check.test_suite))
            if judgement.outcome is not Outcome.ACCEPTED:
                raise JudgeError(f"{check.language} programs cannot be judged: {judgement.detail or judgement.outcome}")

    async def _judge_on(self, worker: JudgeWorker, submission: Submission, size: int) -> Judgement:
        judgement: Judgement | None
        if size <= _LARGE:
            judgement = await worker.call("judge", submission)
        else:
            judgement = await self._judge_by_digest(worker, submission, size)
        assert judgement is not None
        worker.failures = worker.failures + 1 if judgement.outcome is Outcome.JUDGE_ERROR else 0
        return judgement

    async def _judge_by_digest(self, worker: JudgeWorker, submission: Submission, size: int) -> Judgement | None:
        """Sends the digest of the tests; sends their reference if the worker does not have them (any more)."""
        digest = submission.test_suite.digest
        call = ("judge_by_digest", submission.language, submission.source, submission.stop, digest)
        if digest in worker.known:
            judgement: Judgement | None = await worker.call(*call, None)
            if judgement is not None:
                return judgement
        reference = await self._suites.get(digest, size, partial(asyncio.to_thread, ray.put, submission.test_suite))
        worker.known.add(digest)
        return await worker.call(*call, (reference, size))  # type: ignore[no-any-return]


class RayTask:
    """A Task whose answers a RayJudge grades."""

    def __init__(self, local: Task, judge: RayJudge) -> None:
        """The caller closes the judge."""
        self._local, self._judge = local, judge

    def problems(self, split: str) -> Sequence[Problem]:
        return self._local.problems(split)

    async def grade(self, problem: Problem, text: str) -> Verdict:
        try:
            return await self._judge.grade(problem, text)
        except Exception as error:
            return Verdict(Outcome.JUDGE_ERROR, None, detail=f"{problem.id}: {str(error) or repr(error)}")


def _size(suite: TestSuite) -> int:
    """Approximate size of a test suite in characters."""
    return sum(
        len(test.input) + len(test.output) if isinstance(test, IoTest) else len(test.code) for test in suite.tests
    )


async def _fetch(reference: Any) -> TestSuite:
    suite: TestSuite = await reference
    return suite
