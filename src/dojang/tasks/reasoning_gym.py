"""Puzzles of reasoning-gym, scored by the generator that made them.

what stands in the last <answer></answer>     the generator's score, from 0 to 1; right if it is 1
no such tags                                  NO_ANSWER, 0
the generator hangs or raises                 JUDGE_ERROR: no reward at all
"""

import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Literal

from pydantic import Field

from dojang.core.errors import ConfigError
from dojang.core.section import Section
from dojang.tasks.splits import problems_of
from dojang.tasks.worker_pool import WorkerFailure, Workers
from dojang.types import Outcome, Problem, Verdict

__all__ = ["ReasoningGymTask", "ReasoningGymTaskConfig"]


class ReasoningGymTaskConfig(Section):
    """The answer is scored by the puzzle's own generator."""

    name: Literal["reasoning_gym"] = "reasoning_gym"
    timeout_s: float = Field(default=10.0, gt=0)
    """Seconds for scoring one answer; after that the process that hangs is killed."""
    workers: int = Field(default=0, ge=0, le=1024)
    """Processes that score; 0 for one a core."""

    def part_names(self) -> list[str]:
        """Names of the terms of the reward."""
        return ["score"]

    def make(self, problems: Mapping[str, Sequence[Problem]]) -> "ReasoningGymTask":
        """The task with these settings."""
        if find_spec("reasoning_gym") is None:
            raise ConfigError("task.name=reasoning_gym needs reasoning-gym: pip install 'dojang[reasoning-gym]'")
        return ReasoningGymTask(self, problems)


class ReasoningGymTask:
    """The Task of this file."""

    def __init__(self, config: ReasoningGymTaskConfig, problems: Mapping[str, Sequence[Problem]]) -> None:
        self._problems = problems
        self._workers = Workers("dojang.tasks.reasoning_gym_process", count=config.workers, timeout_s=config.timeout_s)

    def problems(self, split: str) -> Sequence[Problem]:
        return problems_of(self._problems, split)

    async def grade(self, problem: Problem, text: str) -> Verdict:
        started = time.perf_counter()
        try:
            if not isinstance(problem.reference, Mapping):
                raise WorkerFailure("not a problem of reasoning-gym")
            found = await self._workers.ask({**problem.reference, "text": text})
        except WorkerFailure as failure:
            found = {"error": str(failure)}
        seconds = time.perf_counter() - started
        if "score" not in found:
            return Verdict(Outcome.JUDGE_ERROR, None, detail=f"{problem.id}: {found['error']}", seconds=seconds)
        score = found["score"]
        if score is None:
            return Verdict(
                Outcome.NO_ANSWER, 0.0, parts={"score": 0.0}, detail="nothing in <answer> tags", seconds=seconds
            )
        right = score >= 1
        return Verdict(
            Outcome.ACCEPTED if right else Outcome.WRONG,
            score,
            passed=int(right),
            parts={"score": score},
            detail="" if right else f"scored {score:g}",
            seconds=seconds,
        )
