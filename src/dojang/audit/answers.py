"""Audits problems whose answer is a number or formula: the verifier must accept the reference and reject others."""

from dojang.audit.findings import Audited, AuditSettings, GradedAnswer
from dojang.audit.grading import add_grading_findings
from dojang.data.prepare_rows import KnownAnswers
from dojang.protocols import Task
from dojang.tasks.wrong_answers import FORMS, wrong_answers
from dojang.workflows.grade_with_retries import grade_with_retries

__all__ = ["AnswerAudit"]


class AnswerAudit:
    """Audits problems one by one."""

    def __init__(self, task: Task, name: str, limit_s: float, settings: AuditSettings) -> None:
        self._task, self._form, self._limit_s, self._settings = task, FORMS[name], limit_s, settings

    async def audit(self, audited: Audited, known: KnownAnswers) -> None:
        """Grades correct and perturbed answers, and adds findings."""
        reference = str(audited.problem.reference)
        right = self._form(reference)
        await self._grade(audited, "known-good", right)
        for _ in range(self._settings.repeats - 1):
            await self._grade(audited, "again", right)
        for text in known.good[: self._settings.solutions]:
            await self._grade(audited, "known-good", text)
        for wrong in (*map(self._form, wrong_answers(reference)), self._form(""), ""):
            if (await self._grade(audited, "perturbed", wrong)).full:
                audited.find("accepts_wrong", f"{wrong[:80]!r} for {reference[:80]!r}")
        add_grading_findings(audited, self._settings, self._limit_s)

    async def _grade(self, audited: Audited, kind: str, text: str) -> GradedAnswer:
        answer = GradedAnswer(kind, await grade_with_retries(self._task, audited.problem, text))
        audited.answers.append(answer)
        return answer
