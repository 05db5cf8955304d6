"""Problems whose answer is a number or a formula: the reference itself must be accepted, others must not."""

from dojang.audit.findings import Attempt, Audited, Thoroughness
from dojang.audit.grading import conclude
from dojang.data.prepare_rows import Known
from dojang.protocols import Task
from dojang.tasks.wrong_answers import FORMS, others
from dojang.workflows.grade_with_retries import graded

__all__ = ["AnswerAudit"]


class AnswerAudit:
    """Audits one such problem after the other."""

    def __init__(self, task: Task, name: str, limit_s: float, how: Thoroughness) -> None:
        self._task, self._form, self._limit_s, self._how = task, FORMS[name], limit_s, how

    async def audit(self, audited: Audited, known: Known) -> None:
        """Grade right answers and others, and note what is found."""
        reference = str(audited.problem.reference)
        right = self._form(reference)
        await self._grade(audited, "known-good", right)
        for _ in range(self._how.repeats - 1):
            await self._grade(audited, "again", right)
        for text in known.good[: self._how.solutions]:
            await self._grade(audited, "known-good", text)
        for wrong in (*map(self._form, others(reference)), self._form(""), ""):
            if (await self._grade(audited, "perturbed", wrong)).full:
                audited.find("accepts_wrong", f"{wrong[:80]!r} for {reference[:80]!r}")
        conclude(audited, self._how, self._limit_s)

    async def _grade(self, audited: Audited, kind: str, text: str) -> Attempt:
        attempt = Attempt(kind, await graded(self._task, audited.problem, text))
        audited.attempts.append(attempt)
        return attempt
