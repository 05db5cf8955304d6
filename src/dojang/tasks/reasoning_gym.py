"""reasoning-gym task: puzzles scored by the generator that made them.

text in the last <answer></answer>            the generator's score, from 0 to 1; ACCEPTED if it is 1
no such tags                                  NO_ANSWER, 0
the generator hangs or raises                 JUDGE_ERROR: no reward
"""

import re
import time
from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from dojang.core.section import Requirement
from dojang.protocols import Judge
from dojang.tasks.base import SplitTask
from dojang.tasks.section import TaskSection
from dojang.tasks.stop_lines import TURN_AFTER_TAGS, tags_end
from dojang.tasks.worker_pool import WorkerFailure, WorkerPool
from dojang.types import Outcome, Problem, StopLine, Verdict

__all__ = ["ReasoningGymTask", "ReasoningGymTaskConfig"]

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class ReasoningGymTaskConfig(TaskSection):
    """reasoning-gym: the puzzle's generator scores the answer."""

    grades_on_nodes: ClassVar[bool] = True
    own_parts: ClassVar[tuple[str, ...]] = ("score",)
    name: Literal["reasoning_gym"] = "reasoning_gym"
    timeout_s: float = Field(default=10.0, gt=0)
    """Time limit in seconds for scoring one answer, after which its process is killed."""
    workers: int = Field(default=0, ge=0, le=1024)
    """Number of worker processes; 0: one per core."""

    stop_at: Literal["next_turn", "never"] = "next_turn"
    """Stop condition of completions. next_turn: at an invented next turn ("Human:", a token of a chat template) after
    an <answer></answer>. never: only at the end token and at stop strings of the data."""

    def stop_line(self) -> StopLine | None:
        return None if self.stop_at == "never" else TURN_AFTER_TAGS

    def answer_end(self, text: str) -> int | None:
        return tags_end(text)

    def required_packages(self) -> Iterator[Requirement]:
        yield Requirement("task.name=reasoning_gym", ("reasoning_gym",), "reasoning-gym")

    def worker_processes(self) -> int | None:
        return self.workers

    def right_and_wrong(self, problem: Problem) -> tuple[list[str], list[str]]:
        """The generator's answer, and an empty one: some puzzles have several answers and name none."""
        reference = problem.reference
        answer = literal_eval(reference["entry"]).get("answer") if isinstance(reference, Mapping) else None
        return [] if answer is None else [f"<answer>{answer}</answer>"], ["<answer></answer>"]

    def make(self, problems: Mapping[str, Sequence[Problem]], judge: Judge | None = None) -> "ReasoningGymTask":
        self.check_packages()
        return ReasoningGymTask(self, problems)


class ReasoningGymTask(SplitTask):
    """Grades with reasoning-gym in worker processes."""

    def __init__(self, config: ReasoningGymTaskConfig, problems: Mapping[str, Sequence[Problem]]) -> None:
        super().__init__(problems)
        self._workers = WorkerPool(
            "dojang.tasks.reasoning_gym_process", count=config.workers, timeout_s=config.timeout_s
        )

    def extract(self, problem: Problem, text: str) -> str | None:
        found = _ANSWER.findall(text)
        return found[-1].strip() if found else None

    async def grade(self, problem: Problem, text: str) -> Verdict:
        started = time.perf_counter()
        try:
            if not isinstance(problem.reference, Mapping):
                raise WorkerFailure("not a reasoning-gym problem")
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
