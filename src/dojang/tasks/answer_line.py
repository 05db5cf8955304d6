"""Task with one number as answer, on a separate line: GSM8K, arithmetic.

The outcome says whether the answer is correct; the reward is the weighted sum of the reward functions. They are
computed independently, so accuracy does not depend on the choice of rewards.
"""

import time
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from dojang.tasks.answers import answer_line, is_correct, read_number
from dojang.tasks.reward_settings import RewardedTaskConfig, Weighted
from dojang.tasks.rewards import BUILT_IN, RewardFailure, WeightedRewards, columns_of
from dojang.tasks.splits import problems_of
from dojang.types import Outcome, Problem, Verdict

__all__ = ["AnswerLineConfig", "AnswerLineTask"]


class AnswerLineConfig(RewardedTaskConfig):
    """Answer line: the answer is one number on a line that begins with ####."""

    built_in: ClassVar[tuple[str, ...]] = tuple(BUILT_IN)
    name: Literal["answer_line"] = "answer_line"
    rewards: Weighted = Field(default={"format": 0.5, "correct": 1.0}, min_length=1)
    """Reward functions and their weights: `format`, `correct`, `gsm8k_post_format`, `gsm8k_post_correct`, a length, a
    pattern, or a custom package.module:function (docs/rewards.md)."""

    def make(self, problems: Mapping[str, Sequence[Problem]]) -> "AnswerLineTask":
        """Creates the task."""
        return AnswerLineTask(self, problems)


class AnswerLineTask:
    """Grades by the number on the answer line."""

    def __init__(self, config: AnswerLineConfig, problems: Mapping[str, Sequence[Problem]]) -> None:
        self._problems = problems
        self._rewards = WeightedRewards(config.rewards, timeout_s=config.timeout_s, columns=columns_of(problems))

    def problems(self, split: str) -> Sequence[Problem]:
        return problems_of(self._problems, split)

    async def check_rewards(self, problem: Problem) -> None:
        """Tries the reward functions on a problem; raises ConfigError if one cannot be called."""
        await self._rewards.check(problem)

    def extract(self, problem: Problem, text: str) -> str | None:
        return answer_line(text)

    async def grade(self, problem: Problem, text: str) -> Verdict:
        started = time.perf_counter()
        try:
            outcome, detail = _outcome(problem, text)
            score = await self._rewards.score(problem, text)
            if not score.parts:
                raise RewardFailure("no reward function applies to it")
        except (RewardFailure, ValueError) as failure:
            return Verdict(
                Outcome.JUDGE_ERROR,
                None,
                detail=f"{problem.id}: {failure}",
                seconds=time.perf_counter() - started,
            )
        return Verdict(
            outcome,
            score.total,
            passed=int(outcome is Outcome.ACCEPTED),
            parts=score.parts,
            terms=score.terms,
            detail=detail,
            seconds=time.perf_counter() - started,
        )


def _outcome(problem: Problem, text: str) -> tuple[Outcome, str]:
    """Returns the outcome of the completion, and why it was not accepted."""
    if is_correct(text, problem.reference):
        return Outcome.ACCEPTED, ""
    line = answer_line(text)
    if line is None:
        return Outcome.NO_ANSWER, "no line begins with ####"
    if read_number(line) is None:
        return Outcome.WRONG, f"the answer line does not hold exactly one number: {line[:80]!r}"
    return Outcome.WRONG, f"the answer line says {line[:80]!r}, the answer is {problem.reference}"
