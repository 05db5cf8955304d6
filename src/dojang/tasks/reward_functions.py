"""Task whose reward is the weighted sum of reward functions; rows need no reference answer."""

import time
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from dojang.tasks.reward_settings import RewardedTaskConfig, Weighted, weight_of
from dojang.tasks.rewards import BUILT_IN, RewardFailure, WeightedRewards, columns_of
from dojang.tasks.splits import problems_of
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

    def make(self, problems: Mapping[str, Sequence[Problem]]) -> "RewardFunctionsTask":
        """Creates the task."""
        return RewardFunctionsTask(self, problems)


class RewardFunctionsTask:
    """Grades by reward functions alone."""

    def __init__(self, config: RewardFunctionsConfig, problems: Mapping[str, Sequence[Problem]]) -> None:
        self._problems = problems
        self._threshold = config.threshold()
        self._rewards = WeightedRewards(config.rewards, timeout_s=config.timeout_s, columns=columns_of(problems))

    def problems(self, split: str) -> Sequence[Problem]:
        return problems_of(self._problems, split)

    async def check_rewards(self, problem: Problem) -> None:
        """Tries the reward functions on a problem; raises ConfigError if one cannot be called."""
        await self._rewards.check(problem)

    async def grade(self, problem: Problem, text: str) -> Verdict:
        started = time.perf_counter()
        try:
            score = await self._rewards.score(problem, text)
            if not score.parts:
                raise RewardFailure("no reward function applies to it")
        except RewardFailure as failure:
            taken = time.perf_counter() - started
            return Verdict(Outcome.JUDGE_ERROR, None, detail=f"{problem.id}: {failure}", seconds=taken)
        accepted = score.total >= self._threshold - 1e-9
        return Verdict(
            Outcome.ACCEPTED if accepted else Outcome.WRONG if text.strip() else Outcome.NO_ANSWER,
            score.total,
            passed=int(accepted),
            parts=score.parts,
            terms=score.terms,
            detail="" if accepted else f"reward {score.total:g} is below {self._threshold:g}",
            seconds=time.perf_counter() - started,
        )
