"""Task with one number as answer, on a separate line: GSM8K, arithmetic.

The outcome says whether the answer is correct; the reward is the weighted sum of the reward functions. They are
computed independently, so accuracy does not depend on the choice of rewards.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from dojang.protocols import Judge
from dojang.tasks.answers import answer_line, answer_line_end, is_correct, read_number
from dojang.tasks.base import RewardedTask
from dojang.tasks.reward_settings import RewardedTaskConfig, Weighted
from dojang.tasks.rewards import BUILT_IN
from dojang.tasks.stop_lines import AFTER_ANSWER_LINE
from dojang.tasks.wrong_answers import right_and_wrong
from dojang.types import Outcome, Problem, StopLine, Verdict

__all__ = ["AnswerLineConfig", "AnswerLineTask"]


class AnswerLineConfig(RewardedTaskConfig):
    """Answer line: the answer is one number on a line that begins with ####."""

    built_in: ClassVar[tuple[str, ...]] = tuple(BUILT_IN)
    name: Literal["answer_line"] = "answer_line"
    rewards: Weighted = Field(default={"format": 0.5, "correct": 1.0}, min_length=1)
    """Reward functions and their weights: `format`, `correct`, `gsm8k_post_format`, `gsm8k_post_correct`, a length, a
    pattern, or a custom package.module:function (docs/rewards.md)."""

    stop_at: Literal["answer", "never"] = "answer"
    """Stop condition of completions. answer: at the end of the answer line, the first that begins with ####. never:
    only at the end token and at stop strings of the data."""

    def stop_line(self) -> StopLine | None:
        return None if self.stop_at == "never" else AFTER_ANSWER_LINE

    def answer_end(self, text: str) -> int | None:
        return answer_line_end(text)

    def right_and_wrong(self, problem: Problem) -> tuple[list[str], list[str]]:
        return right_and_wrong(str(problem.reference), lambda answer: f"#### The final answer is {answer}")

    def make(self, problems: Mapping[str, Sequence[Problem]], judge: Judge | None = None) -> "AnswerLineTask":
        return AnswerLineTask(self, problems)


class AnswerLineTask(RewardedTask):
    """Grades by the number on the answer line."""

    def extract(self, problem: Problem, text: str) -> str | None:
        return answer_line(text)

    async def grade(self, problem: Problem, text: str) -> Verdict:
        try:
            outcome = _outcome(problem, text)
        except ValueError as error:  # the reference is no number
            return Verdict(Outcome.JUDGE_ERROR, None, detail=f"{problem.id}: {error}")
        return await self._rewards.verdict(problem, text, lambda total: outcome)


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
