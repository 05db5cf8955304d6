"""Problems whose answer is a number or a formula, in LaTeX or plain, compared by what it means (math-verify).

the last \\boxed{}, or what is called the answer, equals the reference       correct
none of it                                                                   NO_ANSWER
the verifier hangs or fails, or cannot read the reference                    JUDGE_ERROR: no reward at all
"""

import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import ClassVar, Literal

from pydantic import Field

from dojang.core.errors import ConfigError
from dojang.tasks.reward_settings import Rewarded
from dojang.tasks.rewards import WeightedRewards, columns_of
from dojang.tasks.splits import problems_of
from dojang.tasks.worker_pool import WorkerFailure, Workers
from dojang.types import Outcome, Problem, Verdict

__all__ = ["MathsConfig", "MathsTask"]


class MathsConfig(Rewarded):
    """The answer is a number or a formula."""

    own_parts: ClassVar[tuple[str, ...]] = ("correct", "boxed")
    name: Literal["maths"] = "maths"
    correct: float = 1.0
    """What a right answer is worth."""
    boxed: float = 0.0
    """What giving any answer in \\boxed{} is worth, right or not."""
    timeout_s: float = Field(default=5.0, gt=0)
    """Seconds for one comparison, after which the process that hangs is killed; and for a pattern or a
    package.module:function in `rewards`."""
    workers: int = Field(default=0, ge=0, le=1024)
    """Processes that compare; 0 for one a core."""

    def make(self, problems: Mapping[str, Sequence[Problem]]) -> "MathsTask":
        """The task with these settings."""
        if find_spec("math_verify") is None:
            raise ConfigError("task.name=maths needs math-verify: pip install 'dojang[maths]'")
        return MathsTask(self, problems)


class MathsTask:
    """The Task of this file."""

    def __init__(self, config: MathsConfig, problems: Mapping[str, Sequence[Problem]]) -> None:
        self._config, self._problems = config, problems
        self._workers = Workers("dojang.tasks.math_verify_process", count=config.workers, timeout_s=config.timeout_s)
        self._rewards = WeightedRewards(
            config.rewards, timeout_s=config.timeout_s, built_in={}, columns=columns_of(problems)
        )

    def problems(self, split: str) -> Sequence[Problem]:
        return problems_of(self._problems, split)

    async def check_rewards(self, problem: Problem) -> None:
        """Tries the reward functions on a problem: ConfigError if one cannot be called."""
        await self._rewards.check(problem)

    async def grade(self, problem: Problem, text: str) -> Verdict:
        return await self._rewards.added_to(await self._compare(problem, text), problem, text)

    async def _compare(self, problem: Problem, text: str) -> Verdict:
        started = time.perf_counter()
        try:
            found = await self._workers.ask({"gold": str(problem.reference), "text": text})
        except WorkerFailure as failure:
            found = {"error": str(failure)}
        seconds = time.perf_counter() - started
        if "correct" not in found:
            why = found.get("error") or f"the reference {str(problem.reference)[:80]!r} cannot be read"
            return Verdict(Outcome.JUDGE_ERROR, None, detail=f"{problem.id}: {why}", seconds=seconds)
        correct, boxed = float(found["correct"]), float(found["boxed"])
        worth = self._config
        outcome = Outcome.ACCEPTED if correct else Outcome.WRONG if found["answered"] else Outcome.NO_ANSWER
        return Verdict(
            outcome,
            worth.correct * correct + worth.boxed * boxed,
            passed=int(correct),
            parts={"correct": correct, "boxed": boxed},
            terms={"correct": (worth.correct, correct), "boxed": (worth.boxed, boxed)},
            detail="" if correct else f"the answer is {str(problem.reference)[:80]}",
            seconds=seconds,
        )
