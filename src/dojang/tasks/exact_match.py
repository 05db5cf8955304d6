"""Exact-match task: the metric of supervised fine-tuning on given completions."""

from collections.abc import Mapping, Sequence
from typing import Literal

from dojang.protocols import Judge
from dojang.tasks.base import SplitTask
from dojang.tasks.section import TaskSection
from dojang.types import Outcome, Problem, Verdict

__all__ = ["ExactMatchConfig", "ExactMatchTask"]


class ExactMatchConfig(TaskSection):
    """Exact match: the completion equals the reference, apart from white space at both ends."""

    name: Literal["exact_match"] = "exact_match"

    def make(self, problems: Mapping[str, Sequence[Problem]], judge: Judge | None = None) -> "ExactMatchTask":
        return ExactMatchTask(problems)


class ExactMatchTask(SplitTask):
    """Grades by exact match, with reward 1 or 0."""

    def extract(self, problem: Problem, text: str) -> str | None:
        return text.strip() or None

    async def grade(self, problem: Problem, text: str) -> Verdict:
        if text.strip() == str(problem.reference).strip():
            return Verdict(Outcome.ACCEPTED, 1.0, passed=1)
        outcome = Outcome.WRONG if text.strip() else Outcome.NO_ANSWER
        return Verdict(outcome, 0.0, detail=f"the reference is {str(problem.reference).strip()[:200]!r}")
