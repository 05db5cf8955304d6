"""Grades completions from any thread, with or without a running event loop, and after a fork.

A background thread runs the event loop. That thread, and the worker processes of the task or its judge, start with the
first completion and end with the program or with `close`.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from dojang.config.recipe import read_section
from dojang.core.errors import ConfigError, JudgeError
from dojang.core.paths import cache_root
from dojang.judge.config import JudgeConfig
from dojang.programs import Judgement, Submission
from dojang.protocols import Judge, Task
from dojang.tasks.section import TaskSection
from dojang.types import Problem, Verdict
from dojang.workflows.grade_with_retries import grade_with_retries

__all__ = ["Described", "Grader"]

T = TypeVar("T")
Described = str | Mapping[str, Any] | TaskSection | Task
"""A task: its name, its section of a recipe, or a Task object."""


class Grader:
    """Grades completions with a task."""

    def __init__(self, task: Described, judge: Mapping[str, Any] | JudgeConfig | None = None) -> None:
        """Raises ConfigError if the task is unknown. `judge` is a recipe's section, for tasks that run programs."""
        self._described: Any = task
        if isinstance(task, str | Mapping):
            self._described = read_section("task", {"name": task} if isinstance(task, str) else dict(task))
        elif isinstance(task, type) or not (isinstance(task, TaskSection) or hasattr(task, "grade")):
            raise ConfigError(
                f"{task!r:.80} is not a task: give a task's name, its section of a recipe, or an object with `grade`"
            )
        self._judging: JudgeConfig = read_section("judge", {} if judge is None else judge)
        self.name = str(getattr(self._described, "name", type(self._described).__name__))
        self._lock = threading.Lock()
        self._process = 0
        self._made: tuple[Task, Judge | None] = self._make()  # now, so that missing parts are reported here

    def __reduce__(self) -> tuple[Any, ...]:
        return Grader, (self._described, self._judging)

    def verdicts(self, completions: Sequence[tuple[Problem, str]]) -> list[Verdict]:
        """Verdicts in order; JUDGE_ERROR if judging failed after all retries. Raises JudgeError if closed meanwhile."""
        return self._call(lambda task, _: _all(task, completions))

    def judgements(self, submissions: Sequence[Submission]) -> list[Judgement]:
        """Judgements of programs, in order. The task must run programs."""

        async def judge_all(_: Task, judge: Judge | None) -> list[Judgement]:
            assert judge is not None, "only a task that runs programs has a judge"
            return await asyncio.gather(*(judge.judge(each) for each in submissions))

        return self._call(judge_all)

    def _call(self, work: Callable[[Task, Judge | None], Coroutine[Any, Any, T]]) -> T:
        """Runs a coroutine in the background thread, which it starts if need be."""
        with self._lock:
            if self._process != os.getpid():
                self._start()
            found = asyncio.run_coroutine_threadsafe(work(*self._made), self._loop)
        try:
            return found.result()
        except CancelledError:
            raise JudgeError("the grader was closed before all completions were graded") from None

    def close(self) -> None:
        """Ends the thread and all worker processes. A later call starts them again."""
        with self._lock:
            if self._process != os.getpid():
                return
            # Cancel pending calls: they would wait for ever once the event loop has stopped.
            asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
            _, judge = self._made
            if judge is not None:
                asyncio.run_coroutine_threadsafe(judge.close(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._process, self._made = 0, self._make()

    def _make(self) -> tuple[Task, Judge | None]:
        if not isinstance(self._described, TaskSection):
            return self._described, None
        judge = self._judging.make(cache_root()) if self._described.runs_programs else None
        return self._described.make({}, judge), judge

    def _start(self) -> None:
        if self._process:  # threads do not survive a fork
            self._made = self._make()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dojang-grader", daemon=True)
        self._thread.start()
        self._process = os.getpid()


async def _all(task: Task, completions: Sequence[tuple[Problem, str]]) -> list[Verdict]:
    return await asyncio.gather(*(grade_with_retries(task, problem, text) for problem, text in completions))


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for each in others:
        each.cancel()
    await asyncio.gather(*others, return_exceptions=True)
