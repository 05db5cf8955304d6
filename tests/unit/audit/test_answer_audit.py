"""Audit of problems whose answer is a number or formula."""

import asyncio
from collections.abc import Callable

from audit_fakes import problem

from dojang.audit.answers import AnswerAudit
from dojang.audit.findings import Audited
from dojang.audit.options import AuditSettings
from dojang.data.prepare_rows import KnownAnswers
from dojang.tasks.answer_line import AnswerLineConfig
from dojang.tasks.maths import MathsConfig
from dojang.types import Outcome, Problem, Verdict


class FakeTask:
    """Grades with given verdicts."""

    def __init__(self, right: Callable[[str], bool | None], seconds: float = 0.0) -> None:
        self._right, self._seconds = right, seconds

    def problems(self, split: str) -> list[Problem]:
        return []

    async def grade(self, problem: Problem, text: str) -> Verdict:
        right = self._right(text)
        if right is None:
            return Verdict(Outcome.JUDGE_ERROR, None, detail="it hangs")
        return Verdict(Outcome.ACCEPTED if right else Outcome.WRONG, float(right), seconds=self._seconds)


def audit(task: FakeTask, known: KnownAnswers | None = None, reference: str = "18") -> Audited:
    audited = Audited(problem(reference), "train")
    asyncio.run(AnswerAudit(task, MathsConfig(), AuditSettings()).audit(audited, known or KnownAnswers()))
    return audited


def test_valid_problem_has_no_findings() -> None:
    audited = audit(FakeTask(lambda text: text == "\\boxed{18}"))
    assert audited.findings == []
    assert len(audited.of("known-good")) == len(audited.of("again")) == 1
    assert len(audited.of("perturbed")) == 5
    assert not any(each.full for each in audited.of("perturbed"))


def test_refused_reference_is_found() -> None:
    assert audit(FakeTask(lambda text: False)).names == {"refused"}


def test_worked_solutions_are_known_good() -> None:
    audited = audit(FakeTask(lambda text: text == "\\boxed{18}"), KnownAnswers(("so it is \\boxed{eighteen}",)))
    assert [each.detail for each in audited.findings] == ["1 of 2: wrong, not full marks"]


def test_accepted_wrong_answer_is_found() -> None:
    audited = audit(FakeTask(lambda text: text in ("\\boxed{18}", "\\boxed{19}")))
    assert [each.detail for each in audited.findings] == ["'\\\\boxed{19}' for '18'"]
    assert audited.names == {"accepts_wrong"}


def test_unjudged_answers_are_found() -> None:
    assert audit(FakeTask(lambda text: None)).names == {"unusable"}
    assert audit(FakeTask(lambda text: None if "19" in text else "{18}" in text)).names == {"unjudged"}


def test_slow_and_flaky_problems_are_found() -> None:
    assert audit(FakeTask(lambda text: text == "\\boxed{18}", seconds=3.0)).names == {"slow"}
    verdicts = iter((True, False, False, False, False, False, False))
    assert audit(FakeTask(lambda text: next(verdicts))).names == {"flaky"}


def test_answer_line_accepts_its_references() -> None:
    for reference in ("18", "1,080", "-0.5", "0", "$3"):
        audited = Audited(problem(reference), "test")
        task = AnswerLineConfig().make({"audit": [audited.problem]})
        asyncio.run(AnswerAudit(task, AnswerLineConfig(), AuditSettings()).audit(audited, KnownAnswers()))
        assert audited.findings == []
        assert audited.answers[0].verdict.reward == 1.5
