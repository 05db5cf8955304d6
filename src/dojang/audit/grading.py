"""Answers and their verdicts: what the judge said, and what is read off the attempts of any problem."""

import math
from dataclasses import replace

from dojang.audit.findings import Attempt, Audited, Thoroughness
from dojang.programs import Judgement, Submission
from dojang.protocols import Judge

__all__ = ["Listener", "conclude"]


class Listener:
    """A Judge that passes programs on and remembers what became of the last one."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self.again = 0
        """How often the same program has been judged before; a pool that remembers verdicts must not tell."""
        self.cpu_s = math.inf
        """What a test may take, if that is less than its problem allows."""
        self.last: Judgement | None = None
        self.submitted: Submission | None = None
        """What the last judgement is of."""

    async def judge(self, submission: Submission) -> Judgement:
        exam = submission.exam
        if self.cpu_s < exam.limits.cpu_s:
            exam = replace(exam, limits=replace(exam.limits, cpu_s=self.cpu_s))
        anew = replace(submission, source=submission.source + "\n" * self.again, exam=exam)
        self.last, self.submitted = await self._judge.judge(anew), anew
        return self.last

    async def close(self) -> None:
        """The judge stays the owner's."""


def conclude(audited: Audited, how: Thoroughness, limit_s: float) -> None:
    """What attempts say of a problem whatever its kind."""
    lost = [each for each in audited.attempts if not each.judged]
    if lost and len(lost) == len(audited.attempts):
        audited.find("unusable", lost[0].verdict.detail)
    elif lost:
        audited.find("unjudged", f"{len(lost)} of {len(audited.attempts)} answers: {lost[0].verdict.detail}")
    good = audited.of("known-good")
    if refused := [each for each in good if not each.full]:
        said = refused[0].verdict
        audited.find("refused", f"{len(refused)} of {len(good)}: {said.outcome}, {said.detail or 'not full marks'}")
    _flaky(audited)
    times = [_seconds(each) for each in audited.attempts[:1] + audited.of("again") if each.judged]
    if good and times and min(times) > how.slow * limit_s:
        audited.find("slow", f"{min(times):.2f} s of {limit_s:g} s")


def _flaky(audited: Audited) -> None:
    """The first attempt, and the same again."""
    same: list[Attempt] = [each for each in audited.attempts[:1] if each.judged] + audited.of("again")
    seen = list(dict.fromkeys((each.verdict.outcome, each.verdict.passed) for each in same))
    if len(seen) > 1:
        said = " or ".join(f"{outcome} with {passed} passed" for outcome, passed in seen)
        audited.find("flaky", f"judged {len(same)} times: {said}")


def _seconds(attempt: Attempt) -> float:
    return attempt.cpu_s or attempt.verdict.seconds
