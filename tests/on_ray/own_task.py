"""A task of one's own, which processes of the test cluster can import."""

import os
from collections.abc import Mapping, Sequence

from dojang.types import Outcome, Problem, Verdict

__all__ = ["OwnTask"]


class OwnTask:
    """Says where it was graded; some answers raise, some end the process."""

    def __init__(self, problems: Mapping[str, Sequence[Problem]], bonus: float) -> None:
        self._problems, self._bonus = problems, bonus

    def problems(self, split: str) -> Sequence[Problem]:
        return self._problems[split]

    async def grade(self, problem: Problem, text: str) -> Verdict:
        known = [each.reference for each in self._problems["train"] if each.id == problem.id]
        if text == "raise":
            raise ValueError("cannot grade this")
        if text == "end":
            os._exit(1)
        return Verdict(Outcome.ACCEPTED if text in known else Outcome.WRONG, self._bonus, detail=str(os.getpid()))
