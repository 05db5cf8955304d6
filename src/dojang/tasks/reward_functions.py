"""Task whose reward is the weighted sum of reward functions; rows need no reference answer."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from dojang.protocols import Judge
from dojang.tasks.base import RewardedTask
from dojang.tasks.reward_settings import RewardedTaskConfig, Weighted, weight_of
from dojang.tasks.rewards import BUILT_IN
from dojang.types import Outcome, Problem, Verdict

__all__ = ["RewardFunctionsConfig", "RewardFunctionsTask"]


class RewardFunctionsConfig(RewardedTaskConfig):
    """Reward functions: the reward is their weighted sum, as in TRL's `reward_funcs`."""

    built_in: ClassVar[tuple[str, ...]] = tuple(BUILT_IN)
    name: Literal["reward_functions"] = "reward_functions"
    rewards: Weighted = Field(min_length=1)
    """Reward functions and their weights: a custom package.module:function, a length, a pattern, or a built-in one
    (docs/rewards.md)."""
    accept_at: float | None = None
    """Reward from which a completion counts as accepted, for accuracy; null: the sum of all positive weights, which is
    the largest reward if every function returns at most 1."""

    def threshold(self) -> float:
        """Reward from which a completion is accepted."""
        if self.accept_at is not None:
            return self.accept_at
        return sum(weight for weight in map(weight_of, self.rewards.values()) if weight > 0)

    def make(self, problems: Mapping[str, Sequence[Problem]], judge: Judge | None = None) -> "RewardFunctionsTask":
        return RewardFunctionsTask(self, problems)


class RewardFunctionsTask(RewardedTask):
    """Grades by reward functions alone."""

    def __init__(self, config: RewardFunctionsConfig, problems: Mapping[str, Sequence[Problem]]) -> None:
        super().__init__(config, problems)
        self._threshold = config.threshold()

    async def grade(self, problem: Problem, text: str) -> Verdict:
        def outcome(total: float) -> tuple[Outcome, str]:
            if total >= self._threshold - 1e-9:
                return Outcome.ACCEPTED, ""
            below = f"reward {total:g} is below {self._threshold:g}"
            return Outcome.WRONG if text.strip() else Outcome.NO_ANSWER, below

        return await self._rewards.verdict(problem, text, outcome)
