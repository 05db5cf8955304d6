"""Base classes of tasks: problems by split, and reward functions."""

from collections.abc import Mapping, Sequence

from dojang.core.errors import DataError
from dojang.tasks.reward_settings import RewardedTaskConfig
from dojang.tasks.rewards import BUILT_IN, WeightedRewards
from dojang.types import Problem, Verdict

__all__ = ["SHOWN", "RewardedTask", "SplitTask", "check_usable"]

SHOWN = 5
"""Maximum number of items that an error or a verdict's detail lists."""


class SplitTask:
    """A task with problems by split."""

    def __init__(self, problems: Mapping[str, Sequence[Problem]]) -> None:
        self._problems = problems

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self._problems:
            known = ", ".join(map(repr, self._problems)) or "none"
            raise DataError(f"the data has no split {split!r}; splits: {known}")
        return self._problems[split]


def check_usable(wrong: Sequence[str]) -> None:
    """Raises DataError that names the first of the problems that cannot be judged, each with the reason."""
    if wrong:
        many = "1 problem" if len(wrong) == 1 else f"{len(wrong)} problems"
        more = [f"and {len(wrong) - SHOWN} more"] if len(wrong) > SHOWN else []
        raise DataError("\n  ".join([f"{many} cannot be judged:", *wrong[:SHOWN], *more]))


class RewardedTask(SplitTask):
    """A task with reward functions, which add to its own reward."""

    def __init__(self, config: RewardedTaskConfig, problems: Mapping[str, Sequence[Problem]]) -> None:
        super().__init__(problems)
        names = [problem.columns.keys() for split in problems.values() for problem in split]
        columns = tuple(name for name in names[0] if all(name in each for each in names)) if names else None
        built_in = {name: BUILT_IN[name] for name in config.built_in}
        self._rewards = WeightedRewards(config.rewards, timeout_s=config.timeout_s, built_in=built_in, columns=columns)

    async def check_rewards(self, problem: Problem) -> None:
        """Tries the reward functions on a problem; raises ConfigError if one cannot be called."""
        await self._rewards.check(problem)

    async def grade(self, problem: Problem, text: str) -> Verdict:
        return await self._rewards.add_to(await self._own_verdict(problem, text), problem, text)

    async def _own_verdict(self, problem: Problem, text: str) -> Verdict:
        """Verdict without the reward functions."""
        raise NotImplementedError
