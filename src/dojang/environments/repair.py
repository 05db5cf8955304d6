"""Program repair: the judge's feedback goes back to the model, which tries again.

    program ──► judge ──┬──► accepted, or no turns left: the reward of this program
                        └──► feedback ──► next program ──► ...

By default the feedback has no data of hidden tests (repair_feedback.py): what is graded must not be told.
"""

from collections.abc import Sequence
from functools import partial
from typing import Literal

from pydantic import Field

from dojang.core.errors import ConfigError
from dojang.environments.base import Environment, Messages
from dojang.environments.repair_feedback import describe_failure
from dojang.environments.retry import Retry
from dojang.environments.section import EnvironmentSection
from dojang.programs import CallTest, IoTest, Isolation, Judgement
from dojang.protocols import Task
from dojang.tasks.code import CodeTask, read_reference
from dojang.types import Outcome, Problem, Verdict
from dojang.workflows.grade_with_retries import judge_with_retries

__all__ = ["Repair", "RepairConfig"]

ShowTests = Literal["none", "public", "all"]
_ASK = "Fix the program and reply with the whole program."


class RepairConfig(EnvironmentSection):
    """Program repair: the model gets the judge's feedback and tries again."""

    name: Literal["repair"] = "repair"
    max_turns: int = Field(default=3, ge=1, le=10_000)
    """Largest number of programs per episode; the last one counts."""
    show_tests: ShowTests = "public"
    """Tests whose input, expected output and actual output the model may see. public: the examples of the problem,
    which its program is run on as well; of hidden tests only the outcome, and for Python the line and type of an
    exception. all: also the first failed hidden test, so the model is told part of what is graded. none: no test."""
    turn_discount: float = Field(default=1.0, gt=0, le=1)
    """Factor on a positive reward for every program before the accepted or last one."""

    def environment(self) -> Environment:
        return Repair(self.show_tests, self.turn_discount)

    def check_problems(self, task: Task, problems: Sequence[Problem]) -> None:
        if not isinstance(task, CodeTask):
            raise ConfigError("workflow.name=repair repairs programs, so it needs task.name=code")


class Repair(Retry):
    """One problem, several programs."""

    def __init__(self, show_tests: ShowTests, turn_discount: float) -> None:
        super().__init__(turn_discount=turn_discount)
        self._show_tests = show_tests

    def reset(self, problem: Problem) -> Messages:
        self._problem = problem
        return problem.messages

    async def feedback(self, text: str, verdict: Verdict) -> str:
        return f"{await self._describe(text, verdict)}\n\n{_ASK}"

    async def _describe(self, text: str, verdict: Verdict) -> str:
        if not isinstance(self.task, CodeTask):  # a benchmark of another kind; the training task is checked
            return f"The answer was not accepted: {verdict.outcome.value.replace('_', ' ')}."
        reference = read_reference(self._problem.reference)
        public = await self._run_public(self.task, text, reference.public, verdict)
        hidden = self.task.tests(self._problem) if self._show_tests == "all" else ()
        return describe_failure(verdict, reference, public, hidden)

    async def _run_public(
        self, task: CodeTask, text: str, tests: Sequence[IoTest | CallTest], verdict: Verdict
    ) -> Judgement | None:
        """Runs the program on the public tests; None if that would tell nothing."""
        runs = verdict.outcome not in (Outcome.NO_ANSWER, Outcome.COMPILE_ERROR)
        if self._show_tests == "none" or not tests or not runs:
            return None
        found = await judge_with_retries(partial(task.trial, self._problem, text, tests), _unjudged)
        if found.outcome is Outcome.JUDGE_ERROR:
            raise RuntimeError(f"the public tests could not be run: {found.detail}")
        return found


def _unjudged(why: str) -> Judgement:
    return Judgement(Outcome.JUDGE_ERROR, (), 0, Isolation.NONE, detail=why)
