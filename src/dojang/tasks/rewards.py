"""Named rewards and their weights: what an attempt is worth.

A reward is a function of the problem and the completion's text, plain or async. `format` and `correct` are
built in; any other is named `package.module:function` and imported when the rewards are put together. One
that raises, hangs or returns no number ends in `RewardFailure`: the machinery has failed, and the caller must
not take that for a wrong answer.

A foreign function runs in a daemon thread of its own: a hung one holds up neither the event loop nor the end
of the program, as a thread of asyncio's executor would. Not covered: it cannot be stopped, only abandoned;
and one that is stuck inside C code holding the interpreter's lock (a runaway regular expression, say) stops
everything. A verifier that may do that should start a process of its own. An async function runs on the event
loop itself and must not block it.
"""

import asyncio
import inspect
import math
import re
import reprlib
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from typing import SupportsFloat

from dojang.errors import ConfigError
from dojang.settings import load_object
from dojang.tasks.answers import follows_format, is_correct
from dojang.types import Problem

__all__ = ["BUILT_IN", "Reward", "RewardFailure", "Score", "WeightedRewards", "misnamed"]

Reward = Callable[[Problem, str], float | Awaitable[float]]

THREADS = 16
"""Foreign functions at work at a time; in a larger crowd an honest one might be slowed past its deadline."""

_REFERENCE = re.compile(r"\w+(?:\.\w+)*:\w+")


class RewardFailure(Exception):
    """A reward could not be computed; the message names it and says why."""


@dataclass(frozen=True, slots=True)
class Score:
    """The weighted sum, and each reward before weighting."""

    total: float
    parts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Entry:
    label: str
    weight: float
    function: Reward
    trusted: bool


class WeightedRewards:
    """Computes every reward of an attempt and their weighted sum."""

    def __init__(self, weights: Mapping[str, float], *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        labels = _labels(weights)
        self._entries = tuple(
            _Entry(labels[name], weight, _resolve(name), name in BUILT_IN) for name, weight in weights.items()
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slots = asyncio.Semaphore(THREADS)

    async def score(self, problem: Problem, text: str) -> Score:
        """RewardFailure if any of the rewards cannot be computed."""
        parts = {entry.label: await self._compute(entry, problem, text) for entry in self._entries}
        total = sum(entry.weight * parts[entry.label] for entry in self._entries)
        if not math.isfinite(total):
            raise RewardFailure(f"the weighted sum of {parts} is {total}, which is no reward")
        return Score(total, parts)

    async def _compute(self, entry: _Entry, problem: Problem, text: str) -> float:
        deadline = asyncio.timeout(None)
        try:
            async with deadline:
                value = await self._call(entry, problem, text, deadline)
            number = _number(value)
        except (Exception, SystemExit) as error:  # whatever a stranger's code does, the run goes on
            why = f"raised {type(error).__name__}: {error}"
            if deadline.expired():
                why = f"took longer than timeout_s={self._timeout_s:g}"
            raise RewardFailure(f"reward {entry.label!r} {why}"[:500]) from error
        if number is None:
            raise RewardFailure(f"reward {entry.label!r} returned {reprlib.repr(value)}, not a finite number")
        return number

    async def _call(self, entry: _Entry, problem: Problem, text: str, deadline: asyncio.Timeout) -> object:
        if entry.trusted:
            return entry.function(problem, text)
        async with self._slot():
            deadline.reschedule(asyncio.get_running_loop().time() + self._timeout_s)
            value = await _in_daemon_thread(entry.function, problem, text)
        # Calling an async function only makes a coroutine; it runs here, under the same deadline.
        return await value if inspect.isawaitable(value) else value

    def _slot(self) -> asyncio.Semaphore:
        """A semaphore belongs to one event loop, and this object may be used from several in turn."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._slots = loop, asyncio.Semaphore(THREADS)
        return self._slots


def _number(value: object) -> float | None:
    # SupportsFloat takes numpy's and torch's scalars and refuses text, which float() would parse.
    number = float(value) if isinstance(value, SupportsFloat) else math.nan
    return number if math.isfinite(number) else None


async def _in_daemon_thread(function: Reward, problem: Problem, text: str) -> object:
    """Call the function in a thread nobody waits for at exit, and wait for its result."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[object, BaseException | None]] = loop.create_future()

    def deliver(value: object, error: BaseException | None) -> None:
        if not done.done():  # the caller may have given up
            done.set_result((value, error))

    def work() -> None:
        value: object = None
        error: BaseException | None = None
        try:
            value = function(problem, text)
        except BaseException as raised:  # sys.exit() too: it would end the thread and keep the caller waiting
            error = raised
        with suppress(RuntimeError):  # the loop is closed: the program has moved on
            loop.call_soon_threadsafe(deliver, value, error)

    threading.Thread(target=work, name=f"reward {function!r}"[:80], daemon=True).start()
    value, error = await done
    if error is not None:
        raise error if isinstance(error, Exception | SystemExit) else RuntimeError(repr(error))
    return value


def _format(problem: Problem, text: str) -> float:
    return float(follows_format(text))


def _correct(problem: Problem, text: str) -> float:
    return float(is_correct(text, problem.reference))


BUILT_IN: Mapping[str, Reward] = {"format": _format, "correct": _correct}


def misnamed(name: str) -> str | None:
    """Why this cannot be the name of a reward, if it cannot."""
    if name in BUILT_IN or _REFERENCE.fullmatch(name):
        return None
    near = get_close_matches(name.lower(), BUILT_IN, n=1)
    return (
        f"unknown reward {name!r}: it is neither built in ({', '.join(BUILT_IN)}) "
        "nor of the form package.module:function" + (f"; did you mean {near[0]!r}?" if near else "")
    )


def _labels(names: Iterable[str]) -> dict[str, str]:
    """A short name for each reward: the function's, where no two share it."""
    short = {name: name.rpartition(":")[2] for name in names}
    times = Counter(short.values())
    return {name: label if times[label] == 1 else name for name, label in short.items()}


def _resolve(name: str) -> Reward:
    if problem := misnamed(name):
        raise ConfigError(problem)
    if name in BUILT_IN:
        return BUILT_IN[name]
    return _checked(name, load_object(name, "task.rewards"))


def _checked(name: str, found: object) -> Reward:
    if not callable(found):
        raise ConfigError(f"reward {name!r} is {type(found).__name__}, not a function of (problem, text)")
    with suppress(ValueError):  # some functions written in C do not tell their parameters
        signature = inspect.signature(found)
        try:
            signature.bind(None, "")
        except TypeError as error:
            raise ConfigError(
                f"reward {name!r} takes {signature}, but is called with (problem, text): {error}"
            ) from error
    return found
