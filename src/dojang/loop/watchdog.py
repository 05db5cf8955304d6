"""Watchdog: says in words who waits for whom when a run makes no progress, and writes the stacks of a long stall.

    nothing has progressed for 120 s: the trainer waits for rollouts (121 s); batch 12 lacks 3 of 32 groups: 2 held by
    node-2, the oldest (prompt 387) for 135 s, 1 without a worker

Progress is a finished activity: a stage of a step, a rollout, an evaluated problem, a delivery of a worker. The first
report comes after a minute, or after twice the longest pause that the run has overcome so far, the next ones at twice
the time each. Runs in a thread, since a trainer may compute in the event loop's. Never stops the run.
"""

import asyncio
import faulthandler
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, Protocol, Self

from dojang.loop.timeline import span

__all__ = ["Watchdog", "activity"]

logger = logging.getLogger(__name__)

FIRST_REPORT_S = 60.0
POLL_S = 5.0
_ANSWER_S = 1.0
"""Seconds that the event loop has to answer before it counts as blocked."""

_WORDS = {
    "wait": "the trainer waits for rollouts",
    "teacher": "the teacher scores samples",
    "update": "the trainer computes the update",
    "publish": "the trainer publishes weights",
    "load": "the engine loads weights",
    "checkpoint": "a checkpoint is being saved",
    "eval": "an evaluation runs",
}
_ITEMS = {"rollout": "groups being sampled or judged", "problem": "problems being evaluated"}

_current: ContextVar["Watchdog | None"] = ContextVar("watchdog", default=None)


class Watched(Protocol):
    """Rollouts of a run, as the watchdog sees them."""

    @property
    def settled(self) -> int:
        """A number that grows with every finished rollout."""

    def describe(self) -> str:
        """Says what the next batch lacks, and who has it."""


@dataclass(frozen=True, slots=True)
class _Activity:
    name: str
    prompt_index: int | None
    since: float


@contextmanager
def activity(name: str, prompt_index: int | None = None) -> Iterator[None]:
    """Tells this run's watchdog and its timeline, if it has them, what is being done. Leaving the context is
    progress."""
    watchdog = _current.get()
    with span(name):
        if watchdog is None:
            yield
            return
        key = watchdog.begin(_Activity(name, prompt_index, time.monotonic()))
        try:
            yield
        finally:
            watchdog.end(key)


class Watchdog:
    """Watches a run while its context is open."""

    def __init__(self, rollouts: Watched, stall_file: Path, limit_s: float) -> None:
        """After `limit_s` without progress, stacks are appended to `stall_file`."""
        self._rollouts, self._file, self._limit_s = rollouts, stall_file, limit_s
        self._keys = count()
        self._active: dict[int, _Activity] = {}
        self._ended = 0
        self._signs = (0, rollouts.settled)
        self._since = time.monotonic()
        """When the last progress was noticed."""
        self._longest_pause = 0.0
        self._report_at = FIRST_REPORT_S
        self._reported = self._dumped = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        _current.set(self)
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        _current.set(None)
        self._closed.set()
        self._thread.join(2 * _ANSWER_S)  # longer than it waits for an answer of this event loop

    def begin(self, what: _Activity) -> int:
        key = next(self._keys)
        self._active[key] = what
        return key

    def end(self, key: int) -> None:
        del self._active[key]
        self._ended += 1

    # In the thread ----------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._closed.wait(POLL_S):
            try:
                self.check()
            except Exception:  # must not end the run
                logger.debug("the watchdog failed", exc_info=True)

    def check(self) -> None:
        """Reports if nothing has progressed for long enough."""
        now, signs = time.monotonic(), (self._ended, self._rollouts.settled)
        pause = now - self._since
        if signs != self._signs:
            if self._reported:
                logger.warning("the run goes on after %.0f s", pause)
            self._signs, self._since = signs, now
            self._longest_pause = max(self._longest_pause, pause)
            self._report_at = max(FIRST_REPORT_S, 2 * self._longest_pause)
            self._reported = self._dumped = False
            return
        if pause >= self._report_at:
            self._report_at *= 2
            self._reported = True
            logger.warning("nothing has progressed for %.0f s: %s", pause, self._describe(now))
        if pause >= max(self._limit_s, 2 * self._longest_pause) and not self._dumped:
            self._dumped = True
            self._dump(now, pause)

    def _describe(self, now: float) -> str:
        active = list(self._active.values())
        said = [f"{_words(each.name)} ({now - each.since:.0f} s)" for each in active if each.prompt_index is None]
        for name, words in _ITEMS.items():
            items = [each for each in active if each.name == name]
            if items:
                oldest = min(items, key=lambda each: each.since)
                age = now - oldest.since
                said.append(f"{words}: {len(items)}, the oldest (prompt {oldest.prompt_index}) for {age:.0f} s")
        said += filter(None, [self._rollouts.describe()])
        if not self._answers():
            said.append("the event loop is blocked by a computation in its thread")
        return "; ".join(said) or "the run is starting, or between two stages"

    def _answers(self) -> bool:
        """Whether the event loop runs callbacks."""
        answered = threading.Event()
        if self._loop is None or self._loop.is_closed():
            return True
        self._loop.call_soon_threadsafe(answered.set)
        return answered.wait(_ANSWER_S)

    def _dump(self, now: float, pause: float) -> None:
        try:
            with self._file.open("a") as file:
                file.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC: nothing has progressed for {pause:.0f} s\n")
                file.write(f"{self._describe(now)}\n\nthreads:\n")
                file.flush()
                faulthandler.dump_traceback(file)
                file.write("\nasyncio tasks:\n")
                file.writelines(_task_stacks(self._loop))
                file.write("\n")
        except OSError as error:
            logger.warning("the stacks of this stall cannot be written to %s: %s", self._file, error)
        else:
            logger.warning("stacks of all threads and tasks are in %s; the run goes on waiting", self._file)


def _words(name: str) -> str:
    stage, _, benchmark = name.partition("/")
    return _WORDS.get(stage, stage) + (f" on {benchmark}" if benchmark else "")


def _task_stacks(loop: asyncio.AbstractEventLoop | None) -> Iterator[str]:
    for task in asyncio.all_tasks(loop) if loop is not None else ():
        yield f"{task.get_name()}:\n"
        coroutine: Any = task.get_coro()
        while (frame := getattr(coroutine, "cr_frame", None)) is not None:
            code = frame.f_code
            yield f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_qualname}\n'
            coroutine = coroutine.cr_await
        if coroutine is not None:
            yield f"  awaits {coroutine!r}\n"
