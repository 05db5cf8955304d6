"""Records judgements, and derives the findings that all kinds of problems have in common."""

import math
from dataclasses import replace

from dojang.audit.findings import Audited, GradedAnswer
from dojang.audit.options import AuditSettings
from dojang.programs import Judgement, Submission
from dojang.protocols import Judge

__all__ = ["RecordingJudge", "add_grading_findings"]


class RecordingJudge:
    """A Judge that forwards programs and records the last judgement."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self.again = 0
        """Number of earlier judgements of the same program; makes the source differ, so that no pool answers from its
        cache."""
        self.cpu_s = math.inf
        """CPU limit of a test in seconds, if lower than the problem's."""
        self.last: Judgement | None = None
        self.submitted: Submission | None = None
        """Submission of the last judgement."""

    async def judge(self, submission: Submission) -> Judgement:
        suite = submission.test_suite
        if self.cpu_s < suite.limits.cpu_s:
            suite = replace(suite, limits=replace(suite.limits, cpu_s=self.cpu_s))
        anew = replace(submission, source=submission.source + "\n" * self.again, test_suite=suite)
        self.last, self.submitted = await self._judge.judge(anew), anew
        return self.last

    async def close(self) -> None:
        """Leaves the judge open: its owner closes it."""


def add_grading_findings(audited: Audited, settings: AuditSettings, limit_s: float) -> None:
    """Adds findings that follow from the verdicts: unusable, unjudged, refused, flaky, slow."""
    lost = [each for each in audited.answers if not each.judged]
    if lost and len(lost) == len(audited.answers):
        audited.find("unusable", lost[0].verdict.detail)
    elif lost:
        audited.find("unjudged", f"{len(lost)} of {len(audited.answers)} answers: {lost[0].verdict.detail}")
    good = audited.of("known-good")
    if refused := [each for each in good if not each.full]:
        said = refused[0].verdict
        audited.find("refused", f"{len(refused)} of {len(good)}: {said.outcome}, {said.detail or 'not full marks'}")
    _flaky(audited)
    times = [_seconds(each) for each in audited.answers[:1] + audited.of("again") if each.judged]
    if good and times and min(times) > settings.slow * limit_s:
        audited.find("slow", f"{min(times):.2f} s of {limit_s:g} s")


def _flaky(audited: Audited) -> None:
    """Compares the verdicts of the first answer and its repetitions."""
    same: list[GradedAnswer] = [each for each in audited.answers[:1] if each.judged] + audited.of("again")
    seen = list(dict.fromkeys((each.verdict.outcome, each.verdict.passed) for each in same))
    if len(seen) > 1:
        said = " or ".join(f"{outcome} with {passed} passed" for outcome, passed in seen)
        audited.find("flaky", f"judged {len(same)} times: {said}")


def _seconds(answer: GradedAnswer) -> float:
    return answer.cpu_s or answer.verdict.seconds
