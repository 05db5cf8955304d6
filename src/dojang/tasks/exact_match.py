"""Answers that must be the reference, word for word: the metric of supervised fine-tuning on given completions."""

from collections.abc import Mapping, Sequence
from typing import Literal

from dojang.core.section import Section
from dojang.tasks.splits import problems_of
from dojang.types import Outcome, Problem, Verdict

__all__ = ["ExactMatchConfig", "ExactMatchTask"]


class ExactMatchConfig(Section):
    """Exact match: the answer is the reference, apart from white space at both ends."""

    name: Literal["exact_match"] = "exact_match"

    def part_names(self) -> list[str]:
        """Names of the reward's parts: it is of one piece."""
        return []

    def make(self, problems: Mapping[str, Sequence[Problem]]) -> "ExactMatchTask":
        """The task."""
        return ExactMatchTask(problems)


class ExactMatchTask:
    """The Task of exact match: reward 1 or 0."""

    def __init__(self, problems: Mapping[str, Sequence[Problem]]) -> None:
        self._problems = problems

    def problems(self, split: str) -> Sequence[Problem]:
        return problems_of(self._problems, split)

    async def grade(self, problem: Problem, text: str) -> Verdict:
        if text.strip() == str(problem.reference).strip():
            return Verdict(Outcome.ACCEPTED, 1.0, passed=1)
        outcome = Outcome.WRONG if text.strip() else Outcome.NO_ANSWER
        return Verdict(outcome, 0.0, detail=f"the reference is {str(problem.reference).strip()[:200]!r}")
