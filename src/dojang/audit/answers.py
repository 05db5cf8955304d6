"""Audits problems whose answer is a number or formula: the verifier must accept the reference and reject others."""

from dojang.audit.findings import Audited, GradedAnswer
from dojang.audit.grading import add_grading_findings
from dojang.audit.options import AuditSettings
from dojang.data.prepare_rows import KnownAnswers
from dojang.protocols import Task
from dojang.tasks.section import AuditableSection
from dojang.workflows.grade_with_retries import grade_with_retries

__all__ = ["AnswerAudit"]


class AnswerAudit:
    """Audits problems one by one."""

    def __init__(self, task: Task, section: AuditableSection, settings: AuditSettings) -> None:
        self._task, self._section, self._settings = task, section, settings

    async def audit(self, audited: Audited, known: KnownAnswers) -> None:
        """Grades correct and perturbed answers, and adds findings."""
        right, wrong = self._section.right_and_wrong(audited.problem)
        for text in right:
            await self._grade(audited, "known-good", text)
            for _ in range(self._settings.repeats - 1):
                await self._grade(audited, "again", text)
        for text in known.good[: self._settings.solutions]:
            await self._grade(audited, "known-good", text)
        for text in wrong:
            if (await self._grade(audited, "perturbed", text)).full:
                audited.find("accepts_wrong", f"{text[:80]!r} for {str(audited.problem.reference)[:80]!r}")
        add_grading_findings(audited, self._settings, self._section.timeout_s)

    async def _grade(self, audited: Audited, kind: str, text: str) -> GradedAnswer:
        answer = GradedAnswer(kind, await grade_with_retries(self._task, audited.problem, text))
        audited.answers.append(answer)
        return answer
