"""Judging on all machines of the cluster: programs, and answers that processes verify.

Large exams are put into the object store once, and fetched once by each machine that needs them; submissions then name
them. A process that ends while it judges, or its machine, is replaced and the work done by another: it is asked for
here until one answers, and that answer is the only one. If nobody can, that is a JUDGE_ERROR which says why.

Equal submissions are judged once on a machine, by the judge there; on two machines they may be judged twice.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

import ray

from dojang.cluster.ray.actors import Lost
from dojang.cluster.ray.judge_pool import Court, Courts
from dojang.cluster.ray.placement import gone
from dojang.core.errors import JudgeError
from dojang.programs import Exam, IoTest, Isolation, Judgement, Stop, Submission
from dojang.protocols import Judge, Task
from dojang.types import Outcome, Problem, Verdict

__all__ = ["Juror", "RayJudge", "RayTask"]

V = TypeVar("V")

_ATTEMPTS = 2
"""How often a judge may fail before that is what is said. One that has just failed is asked only if no other can be."""
_LARGE = 1 << 16
"""Characters of an exam that is not sent with every submission."""
_KEPT = 256 << 20
"""Characters of large exams in the object store, and again on each machine."""


class _Shelf(Generic[V]):
    """What was used last, up to a size. It is made once for all who wait for it."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[asyncio.Future[V], int]] = OrderedDict()
        self._size = 0

    def __contains__(self, name: str) -> bool:
        return name in self._kept and not self._kept[name][0].cancelled()

    async def get(self, name: str, size: int, make: Callable[[], Coroutine[Any, Any, V]]) -> V:
        if name not in self:
            self._discard(name)
            self._kept[name] = asyncio.ensure_future(make()), size
            self._size += size
            while self._size > _KEPT and len(self._kept) > 1:
                self._discard(next(iter(self._kept)))
        self._kept.move_to_end(name)
        try:
            return await asyncio.shield(self._kept[name][0])
        except Exception:
            self._discard(name)
            raise

    def _discard(self, name: str) -> None:
        if name in self._kept:
            self._size -= self._kept.pop(name)[1]


class Juror:
    """The judge's side: in a process on the machine that judges."""

    def __init__(self, judge: Judge, task: Task | None) -> None:
        """`task` grades answers, if they are not programs."""
        self._judge, self._task = judge, task
        self._exams: _Shelf[Exam] = _Shelf()

    async def judge(self, submission: Submission) -> Judgement:
        return await self._judge.judge(submission)

    async def judge_by(
        self, language: str, source: str, stop: Stop, digest: str, where: tuple[Any, int] | None
    ) -> Judgement | None:
        """By an exam that it keeps, or can fetch from where it is; None if it can do neither."""
        if where is None and digest not in self._exams:
            return None
        reference, size = where or (None, 0)
        exam = await self._exams.get(digest, size, partial(_fetch, reference))
        return await self._judge.judge(Submission(language, source, exam, stop))

    async def grade(self, problem: Problem, text: str) -> Verdict:
        assert self._task is not None, "answers to its task are programs"
        return await self._task.grade(problem, text)

    async def close(self) -> None:
        await self._judge.close()


class RayJudge:
    """A Judge of all machines. It begins when it is first asked."""

    def __init__(
        self, factory: Callable[[int], Callable[..., Juror]], *shared: Any, most: int = 0, timeout_s: float
    ) -> None:
        """As for Courts."""
        self._timeout_s = timeout_s
        self._courts = Courts(factory, *shared, prove=self._prove, most=most, timeout_s=timeout_s)
        self._exams: _Shelf[Any] = _Shelf()
        self._proofs: list[Submission] = []

    async def judge(self, submission: Submission) -> Judgement:
        started = time.perf_counter()
        try:
            size = _size(submission.exam)
            if size > _LARGE:
                await asyncio.to_thread(lambda: submission.exam.digest)  # megabytes
            for _ in range(_ATTEMPTS):
                judgement = await self._courts.ask(
                    submission.exam.digest, lambda court: self._judged(court, submission, size)
                )
                if judgement.outcome is not Outcome.JUDGE_ERROR:
                    break
        except Exception as error:  # the promise is a judgement, whatever happens
            words = str(error) or repr(error)
            judgement = Judgement(Outcome.JUDGE_ERROR, (), len(submission.exam.tests), Isolation.NONE, words)
        return replace(judgement, seconds=time.perf_counter() - started)

    async def everywhere(self, submission: Submission) -> list[tuple[str, Judgement]]:
        """What each machine makes of it, with the machine's address. Those that join later must accept it, or are not
        asked to judge."""
        courts = await self._courts.open()
        found = await asyncio.gather(*(self._tried(court, submission) for court in courts))
        self._proofs.append(submission)
        judged = zip(courts, found, strict=True)
        return [(court.node.address, judgement) for court, judgement in judged if judgement is not None]

    async def _tried(self, court: Court, submission: Submission) -> Judgement | None:
        """None if its machine is gone meanwhile."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._judged(court, submission, _size(submission.exam))
        except (Lost, TimeoutError) as error:
            words = str(error) or f"no answer within {self._timeout_s:g} s"
        if await gone(court.node):
            return None
        return Judgement(Outcome.JUDGE_ERROR, (), len(submission.exam.tests), Isolation.NONE, words)

    async def open(self) -> None:
        """Begin on all machines; an error if one of them cannot."""
        await self._courts.open()

    async def grade(self, problem: Problem, text: str) -> Verdict:
        """By the task that the jurors have."""

        async def graded(court: Court) -> Verdict:
            verdict: Verdict = await court.call("grade", problem, text)
            court.failures = court.failures + 1 if verdict.outcome is Outcome.JUDGE_ERROR else 0
            return verdict

        return await self._courts.ask(problem.id, graded)

    async def close(self) -> None:
        await self._courts.close()

    async def _prove(self, court: Court) -> None:
        for proof in self._proofs:
            judgement = await self._judged(court, proof, _size(proof.exam))
            if judgement.outcome is not Outcome.ACCEPTED:
                raise JudgeError(f"{proof.language} programs cannot be judged: {judgement.detail or judgement.outcome}")

    async def _judged(self, court: Court, submission: Submission, size: int) -> Judgement:
        judgement: Judgement | None
        if size <= _LARGE:
            judgement = await court.call("judge", submission)
        else:
            judgement = await self._judged_by(court, submission, size)
        assert judgement is not None
        court.failures = court.failures + 1 if judgement.outcome is Outcome.JUDGE_ERROR else 0
        return judgement

    async def _judged_by(self, court: Court, submission: Submission, size: int) -> Judgement | None:
        """Name the exam; say where it is if it was not sent there yet, or has been forgotten."""
        digest = submission.exam.digest
        asked = ("judge_by", submission.language, submission.source, submission.stop, digest)
        if digest in court.known:
            judgement: Judgement | None = await court.call(*asked, None)
            if judgement is not None:
                return judgement
        reference = await self._exams.get(digest, size, partial(asyncio.to_thread, ray.put, submission.exam))
        court.known.add(digest)
        return await court.call(*asked, (reference, size))  # type: ignore[no-any-return]


class RayTask:
    """A Task whose answers are graded by a RayJudge."""

    def __init__(self, here: Task, judge: RayJudge) -> None:
        """The judge stays the caller's to close."""
        self._here, self._judge = here, judge

    def problems(self, split: str) -> Sequence[Problem]:
        return self._here.problems(split)

    async def grade(self, problem: Problem, text: str) -> Verdict:
        try:
            return await self._judge.grade(problem, text)
        except Exception as error:
            return Verdict(Outcome.JUDGE_ERROR, None, detail=f"{problem.id}: {str(error) or repr(error)}")


def _size(exam: Exam) -> int:
    """About how many characters."""
    return sum(
        len(test.input) + len(test.output) if isinstance(test, IoTest) else len(test.code) for test in exam.tests
    )


async def _fetch(reference: Any) -> Exam:
    exam: Exam = await reference
    return exam
