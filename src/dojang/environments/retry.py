"""Retry: an answer that the task does not accept may be corrected; the last answer is rewarded.

For tasks whose verdict says little more than right or wrong, such as puzzles of reasoning-gym and mathematics; `repair`
is for programs.
"""

from dataclasses import replace
from typing import Literal

from pydantic import Field

from dojang.environments.base import Environment, Reply, Step, StepResult
from dojang.environments.section import EnvironmentSection
from dojang.types import Outcome, Verdict

__all__ = ["Retry", "RetryConfig"]

_ASK = "Check your steps and answer again."


class RetryConfig(EnvironmentSection):
    """Retry: the model is told that its answer is not accepted, and tries again."""

    name: Literal["retry"] = "retry"
    max_turns: int = Field(default=2, ge=1, le=10_000)
    """Largest number of answers per episode; the last one counts."""
    show_score: bool = False
    """Whether the model is told the reward of its answer, for tasks with partial rewards."""
    turn_discount: float = Field(default=1.0, gt=0, le=1)
    """Factor on a positive reward for every answer before the accepted or last one."""

    def environment(self) -> Environment:
        return Retry(show_score=self.show_score, turn_discount=self.turn_discount)


class Retry(Environment):
    """One problem, several answers. A subclass may say more about a wrong one."""

    def __init__(self, *, show_score: bool = False, turn_discount: float = 1.0) -> None:
        self._show_score = show_score
        self._turn_discount = turn_discount

    async def step(self, reply: Reply) -> StepResult:
        verdict = await self.grade(reply.text)
        if verdict.outcome is Outcome.JUDGE_ERROR:
            return verdict
        counted = _discounted(verdict, self._turn_discount**reply.turn)
        if verdict.outcome is Outcome.ACCEPTED or reply.turns_left == 0 or reply.cut:
            return counted
        return Step(await self.feedback(reply.text, verdict), if_last=counted)

    async def feedback(self, text: str, verdict: Verdict) -> str:
        """Returns what the model is told about an answer that is not accepted."""
        said = "There is no answer in the reply." if verdict.outcome is Outcome.NO_ANSWER else "That is not right."
        if self._show_score:
            said = f"{said} Its reward is {verdict.reward:.3g}."
        return f"{said} {_ASK}"


def _discounted(verdict: Verdict, factor: float) -> Verdict:
    """Returns a verdict with a smaller reward; a negative one is not made better."""
    reward = verdict.reward or 0.0
    return replace(verdict, reward=reward * factor) if reward > 0 else verdict
