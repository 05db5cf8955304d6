"""Maths task: the answer is a number or formula, in LaTeX or plain, compared symbolically (math-verify).

the last \\boxed{}, or the expression called the answer, equals the reference    ACCEPTED
neither is present                                                              NO_ANSWER
the verifier hangs or fails, or cannot parse the reference                      JUDGE_ERROR: no reward
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from dojang.core.section import Requirement
from dojang.protocols import Judge
from dojang.tasks.base import RewardedTask
from dojang.tasks.math_verify_process import last_box, last_box_end
from dojang.tasks.reward_settings import RewardedTaskConfig
from dojang.tasks.stop_lines import TURN_AFTER_BOX
from dojang.tasks.worker_pool import WorkerFailure, WorkerPool
from dojang.tasks.wrong_answers import right_and_wrong
from dojang.types import Outcome, Problem, StopLine, Verdict

__all__ = ["MathsConfig", "MathsTask"]


class MathsConfig(RewardedTaskConfig):
    """Maths: the answer is a number or formula, compared by math-verify."""

    own_parts: ClassVar[tuple[str, ...]] = ("correct", "boxed")
    grades_on_nodes: ClassVar[bool] = True
    name: Literal["maths"] = "maths"
    correct: float = 1.0
    """Reward of a correct answer."""
    boxed: float = 0.0
    """Reward of any answer in \\boxed{}, correct or not."""
    timeout_s: float = Field(default=5.0, gt=0)
    """Time limit in seconds of one comparison, after which its process is killed; also of a pattern or a
    package.module:function in `rewards`."""
    workers: int = Field(default=0, ge=0, le=1024)
    """Number of worker processes; 0: one per core."""

    stop_at: Literal["next_turn", "never"] = "next_turn"
    """Stop condition of completions. next_turn: at an invented next turn ("Human:", a token of a chat template) after a
    \\boxed{}. never: only at the end token and at stop strings of the data."""

    def stop_line(self) -> StopLine | None:
        return None if self.stop_at == "never" else TURN_AFTER_BOX

    def answer_end(self, text: str) -> int | None:
        return last_box_end(text)

    def required_packages(self) -> Iterator[Requirement]:
        yield Requirement("task.name=maths", ("math_verify",), "maths")

    def worker_processes(self) -> int | None:
        return self.workers

    def weights(self) -> dict[str, float]:
        return {**super().weights(), "correct": self.correct, "boxed": self.boxed}

    def right_and_wrong(self, problem: Problem) -> tuple[list[str], list[str]]:
        return right_and_wrong(str(problem.reference), lambda answer: f"\\boxed{{{answer}}}")

    def make(self, problems: Mapping[str, Sequence[Problem]], judge: Judge | None = None) -> "MathsTask":
        self.check_packages()
        return MathsTask(self, problems)


class MathsTask(RewardedTask):
    """Grades by symbolic comparison in worker processes."""

    def __init__(self, config: MathsConfig, problems: Mapping[str, Sequence[Problem]]) -> None:
        super().__init__(config, problems)
        self._config = config
        self._workers = WorkerPool("dojang.tasks.math_verify_process", count=config.workers, timeout_s=config.timeout_s)

    def extract(self, problem: Problem, text: str) -> str | None:
        return last_box(text)

    async def _own_verdict(self, problem: Problem, text: str) -> Verdict:
        started = time.perf_counter()
        try:
            found = await self._workers.ask({"gold": str(problem.reference), "text": text})
        except WorkerFailure as failure:
            found = {"error": str(failure)}
        seconds = time.perf_counter() - started
        if "correct" not in found:
            why = found.get("error") or f"the reference {str(problem.reference)[:80]!r} cannot be parsed"
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
