"""Exact-match task: the metric of supervised fine-tuning on given completions."""

from collections.abc import Mapping, Sequence
from typing import Literal

from dojang.tasks.section import TaskSection
from dojang.tasks.splits import problems_of
from dojang.types import Outcome, Problem, Verdict

__all__ = ["ExactMatchConfig", "ExactMatchTask"]


class ExactMatchConfig(TaskSection):
    """Exact match: the completion equals the reference, apart from white space at both ends."""

    name: Literal["exact_match"] = "exact_match"

    def part_names(self) -> list[str]:
        """Returns no names: the reward has no parts."""
        return []

    def make(self, problems: Mapping[str, Sequence[Problem]]) -> "ExactMatchTask":
        """Creates the task."""
        return ExactMatchTask(problems)


class ExactMatchTask:
    """Grades by exact match, with reward 1 or 0."""

    def __init__(self, problems: Mapping[str, Sequence[Problem]]) -> None:
        self._problems = problems

    def problems(self, split: str) -> Sequence[Problem]:
        return problems_of(self._problems, split)

    def extract(self, problem: Problem, text: str) -> str | None:
        return text.strip() or None

    async def grade(self, problem: Problem, text: str) -> Verdict:
        if text.strip() == str(problem.reference).strip():
            return Verdict(Outcome.ACCEPTED, 1.0, passed=1)
        outcome = Outcome.WRONG if text.strip() else Outcome.NO_ANSWER
        return Verdict(outcome, 0.0, detail=f"the reference is {str(problem.reference).strip()[:200]!r}")
