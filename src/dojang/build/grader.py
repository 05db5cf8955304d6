"""A task that anybody can ask: from any thread, whether or not an event loop runs there, and after a fork.

It has an event loop of its own, in a thread. That thread, and the processes of the task or its judge, begin with the
first attempt and end with the program or with `close`.
"""

import asyncio
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dojang.config.run_config import Task as AnyTask
from dojang.core.errors import ConfigError, JudgeError
from dojang.core.paths import cache_root
from dojang.core.section import Section, complaints
from dojang.judge.config import JudgeConfig
from dojang.protocols import Judge, Task
from dojang.tasks.code import CodeConfig
from dojang.types import Problem, Verdict
from dojang.workflows.grade_with_retries import graded

__all__ = ["Described", "Grader"]

Described = str | Mapping[str, Any] | Section | Task
"""A task: its name, its section of a recipe, or itself."""


class Grader:
    """Asks a task for verdicts."""

    def __init__(self, task: Described, judge: Mapping[str, Any] | JudgeConfig | None = None) -> None:
        """ConfigError if there is no such task. `judge` is the section of a recipe, for tasks that run programs."""
        self._described: Any = task
        if isinstance(task, str | Mapping):
            self._described = _validated(AnyTask, {"name": task} if isinstance(task, str) else task, "task")
        elif isinstance(task, type) or not hasattr(task, "make" if isinstance(task, Section) else "grade"):
            raise ConfigError(
                f"{task!r:.80} is no task: give the name of one, its section of a recipe, or an object that can grade"
            )
        self._judging: JudgeConfig = _validated(JudgeConfig, {} if judge is None else judge, "judge")
        self.name = str(getattr(self._described, "name", type(self._described).__name__))
        self._lock = threading.Lock()
        self._process = 0
        self._made: tuple[Task, Judge | None] = self._make()  # now, since it may turn out that something is missing

    def __reduce__(self) -> tuple[Any, ...]:
        return Grader, (self._described, self._judging)

    def verdicts(self, attempts: Sequence[tuple[Problem, str]]) -> list[Verdict]:
        """One for each, in order; JUDGE_ERROR where the machinery failed, again and again. JudgeError if it is closed
        meanwhile."""
        with self._lock:
            if self._process != os.getpid():
                self._begin()
            made = self._made
            found = asyncio.run_coroutine_threadsafe(_all(made[0], attempts), self._loop)
        try:
            return found.result()
        except CancelledError:
            raise JudgeError("it was closed before all completions were judged") from None

    def close(self) -> None:
        """Nothing is left running. Whoever asks again begins anew."""
        with self._lock:
            if self._process != os.getpid():
                return
            # Somebody may still wait for verdicts, and would for ever once the event loop has stopped.
            asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
            _, judge = self._made
            if judge is not None:
                asyncio.run_coroutine_threadsafe(judge.close(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._process, self._made = 0, self._make()

    def _make(self) -> tuple[Task, Judge | None]:
        if isinstance(self._described, CodeConfig):
            judge = self._judging.make(cache_root())
            return self._described.make({}, judge), judge
        if isinstance(self._described, Section):
            return self._described.make({}), None  # type: ignore[attr-defined]
        return self._described, None

    def _begin(self) -> None:
        if self._process:  # a fork has none of the threads
            self._made = self._make()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dojang grades", daemon=True)
        self._thread.start()
        self._process = os.getpid()


async def _all(task: Task, attempts: Sequence[tuple[Problem, str]]) -> list[Verdict]:
    return await asyncio.gather(*(graded(task, problem, text) for problem, text in attempts))


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for each in others:
        each.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _validated(kind: Any, tree: Any, what: str) -> Any:
    try:
        return TypeAdapter(kind).validate_python(dict(tree) if isinstance(tree, Mapping) else tree)
    except ValidationError as error:
        raise ConfigError(f"{what}: {'; '.join(complaints(error))}") from None
