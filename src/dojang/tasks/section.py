"""Base class of the `task` section: what a task needs from the run that uses it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Protocol, Self, runtime_checkable

from dojang.core.section import Section
from dojang.programs import JudgeInput
from dojang.protocols import Judge, Task
from dojang.types import Problem, StopLine

__all__ = ["AuditableSection", "TaskSection"]


@runtime_checkable
class AuditableSection(Protocol):
    """A TaskSection that writes completions with a right or a wrong answer, for audits and plans."""

    @property
    def timeout_s(self) -> float: ...

    def right_and_wrong(self, problem: Problem) -> tuple[Sequence[str], Sequence[str]]:
        """Completions that must get full marks, and completions that must not."""


class TaskSection(Section):
    """Settings of a task. Class attributes and methods state what builders and the planner need to know of it."""

    runs_programs: ClassVar[bool] = False
    """Whether answers are programs: `make` needs a judge, and `judge_input` states the tests."""
    grades_on_nodes: ClassVar[bool] = False
    """Whether grading is slow or runs user code, so that a Ray cluster spreads it over its nodes."""
    grades_with_problems: ClassVar[bool] = False
    """Whether grading on other nodes needs all problems there."""

    user_code: ClassVar[bool] = False
    """Whether grading is the user's own code: it may be slow or cost money, and the terms of its reward are unknown."""

    own_parts: ClassVar[tuple[str, ...]] = ()
    """Names of the terms of the task's own reward."""

    def part_names(self) -> list[str]:
        """Names of the terms of the reward."""
        return list(self.own_parts)

    def make(self, problems: Mapping[str, Sequence[Problem]], judge: Judge | None = None) -> Task:
        """Creates the task of problems by split. The caller closes the judge, which only a task that runs programs
        uses."""
        raise NotImplementedError

    async def check_made(self, task: Task, problems: Mapping[str, Sequence[Problem]]) -> None:
        """Raises ConfigError if the task that `make` created cannot be used."""

    def stop_line(self) -> StopLine | None:
        """Stop condition of completions; None if they end with an end token only."""
        return None

    def answer_end(self, text: str) -> int | None:
        """Position at which the answer in a completion ends; None if it has none, or the task does not say."""
        return None

    def negative_rewards(self) -> Iterator[str]:
        """Settings that make rewards negative, each with a remedy."""
        yield from ()

    def judge_input(self, problem: Problem) -> JudgeInput:
        """Tests of a problem, of a task that runs programs. Raises ValueError if the problem cannot be judged."""
        raise NotImplementedError

    def worker_processes(self) -> int | None:
        """Number of worker processes that grade answers, 0 for one per core; None if the task has none."""
        return None

    def with_workers(self, count: int) -> Self:
        """Copy with a number of worker processes; unchanged if the task has none."""
        return self if self.worker_processes() is None else self.model_copy(update={"workers": count})

    def for_benchmark(self) -> Self:
        """Copy that grades as strictly as an evaluation does."""
        return self
