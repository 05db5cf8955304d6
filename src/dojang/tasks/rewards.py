"""Named rewards and their weights: what an attempt is worth.

A reward is a function of the problem and the completion's text, plain or async. `format` and `correct` are built in,
as are those of the GSM8K post (gsm8k_post.py); reward_settings.py has lengths and patterns; any other
is named `package.module:function` and imported when the rewards are put together (reward_signatures.py: how it may be
written). Whether a TRL function takes completions as messages or as text is found by trying both, once: the form that
raises less often, then the one that tells more completions apart, then the one TRL would give it (messages, for a
conversation). One that raises, hangs or returns no number ends in `RewardFailure`: the machinery has failed, and the
caller must not take that for a wrong answer.

A foreign function runs in a daemon thread of its own: a hung one holds up neither the event loop nor the end
of the program, as a thread of asyncio's executor would. Not covered: it cannot be stopped, only abandoned;
and one that is stuck inside C code holding the interpreter's lock (a runaway regular expression, say) stops
everything. A verifier that may do that should start a process of its own. An async function runs on the event
loop itself and must not block it.
"""

import asyncio
import copy
import inspect
import math
import reprlib
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import SupportsFloat

from dojang.core.errors import ConfigError
from dojang.core.section import load_object
from dojang.tasks.answers import follows_format, is_correct
from dojang.tasks.gsm8k_post import post_correct, post_format
from dojang.tasks.reward_settings import (
    FunctionReward,
    Kind,
    LengthReward,
    PatternReward,
    check_names,
    labels,
    weight_of,
)
from dojang.tasks.reward_signatures import FORMS, NOT_APPLICABLE, Completions, Reward, adapted, samples_of
from dojang.types import Outcome, Problem, Verdict, plain_prompt

__all__ = ["BUILT_IN", "RewardFailure", "Score", "WeightedRewards", "columns_of"]

THREADS = 16
"""Foreign functions at work at a time; in a larger crowd an honest one might be slowed past its deadline."""


class RewardFailure(Exception):
    """A reward could not be computed; the message names it and says why."""


@dataclass(frozen=True, slots=True)
class Score:
    """The weighted sum, and each reward before weighting; those that do not apply are left out."""

    total: float
    parts: Mapping[str, float]
    terms: Mapping[str, tuple[float, float]]
    """Verdict.terms."""


@dataclass(frozen=True, slots=True)
class _Entry:
    label: str
    weight: float
    function: Reward | None
    """None where `forms` has one for each form of completions, until it is known which."""
    trusted: bool = False
    forms: Mapping[Completions, Reward] = field(default_factory=dict)


def columns_of(problems: Mapping[str, Sequence[Problem]]) -> tuple[str, ...] | None:
    """Names of the columns that all problems have; None if there are no problems."""
    names = [problem.columns.keys() for split in problems.values() for problem in split]
    return tuple(name for name in names[0] if all(name in each for each in names)) if names else None


class WeightedRewards:
    """Computes every reward of an attempt and their weighted sum."""

    def __init__(
        self,
        rewards: Mapping[str, Kind],
        *,
        timeout_s: float,
        built_in: Mapping[str, Reward] | None = None,
        columns: Iterable[str] | None = (),
    ) -> None:
        """`built_in`: what a weight alone may name besides functions; those of this file if nothing is said. `columns`
        are those that functions may name, None if they are not known."""
        self._timeout_s = timeout_s
        known = BUILT_IN if built_in is None else built_in
        try:
            check_names(rewards, tuple(known))
        except ValueError as error:
            raise ConfigError(str(error)) from None
        self._entries = [
            replace(_resolve(name, kind, known, timeout_s, columns), label=labels(rewards)[name])
            for name, kind in rewards.items()
        ]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slots = asyncio.Semaphore(THREADS)

    async def score(self, problem: Problem, text: str) -> Score:
        """RewardFailure if any of the rewards cannot be computed."""
        parts: dict[str, float] = {}
        total = 0.0
        for place, entry in enumerate(self._entries):
            if entry.function is None:
                entry = self._entries[place] = await self._settled(entry, problem, (text, *samples_of(problem)))
            value = await self._compute(entry, problem, text)
            if value is not None:
                parts[entry.label] = value
                total += entry.weight * value
        if not math.isfinite(total):
            raise RewardFailure(f"the weighted sum of {parts} is {total}, which is no reward")
        weights = {entry.label: entry.weight for entry in self._entries}
        return Score(total, parts, {label: (weights[label], value) for label, value in parts.items()})

    async def check(self, problem: Problem) -> None:
        """Tries functions with TRL's or veRL's signature on sample completions of a problem, and finds out what form
        they take completions in. ConfigError if one fails on all of them."""
        for place, entry in enumerate(self._entries):
            if entry.forms:
                try:
                    self._entries[place] = await self._settled(entry, problem, samples_of(problem))
                except RewardFailure as failure:
                    forms = " and as ".join(entry.forms)
                    raise ConfigError(
                        f"{failure}; it was tried on sample completions of {problem.id}, as {forms}"
                    ) from failure

    async def _settled(self, entry: _Entry, problem: Problem, texts: Sequence[str]) -> _Entry:
        """The entry with the form of completions that suits its function best."""
        failures: list[RewardFailure] = []
        ranked: list[tuple[int, int, bool, Completions]] = []
        usual = "text" if plain_prompt(problem.messages) is not None else "messages"
        for form, function in entry.forms.items():
            values: list[float | None] = []
            for text in texts:
                try:
                    values.append(await self._compute(replace(entry, function=function), problem, text))
                except RewardFailure as failure:
                    failures.append(failure)
            if values:
                ranked.append((len(values), len(set(values)), form == usual, form))
        if not ranked:
            told = list(dict.fromkeys(map(str, failures)))
            raise RewardFailure("; ".join(told)[:1000]) from failures[0]
        return replace(entry, function=entry.forms[max(ranked)[-1]])

    async def added_to(self, verdict: Verdict, problem: Problem, text: str) -> Verdict:
        """The verdict with these rewards on top of its own; a JUDGE_ERROR if one of them cannot be computed."""
        if verdict.reward is None or not self._entries:
            return verdict
        started = time.perf_counter()
        try:
            score = await self.score(problem, text)
            reward = verdict.reward + score.total
            parts = {**verdict.parts, **score.parts}
            seconds = verdict.seconds + time.perf_counter() - started
            return replace(verdict, reward=reward, parts=parts, terms={**verdict.terms, **score.terms}, seconds=seconds)
        except (RewardFailure, ValueError) as failure:  # or a sum that is not finite
            return Verdict(Outcome.JUDGE_ERROR, None, detail=f"{problem.id}: {failure}")

    async def _compute(self, entry: _Entry, problem: Problem, text: str) -> float | None:
        """None if it does not apply."""
        deadline = asyncio.timeout(None)
        try:
            async with deadline:
                value = await self._call(entry, problem, text, deadline)
            if value is NOT_APPLICABLE:
                return None
            number = _number(value)
        except (Exception, SystemExit) as error:  # whatever a stranger's code does, the run goes on
            why = f"raised {type(error).__name__}: {error}"
            if deadline.expired():
                why = f"took longer than timeout_s={self._timeout_s:g}"
            raise RewardFailure(f"reward {entry.label!r} {why}"[:500]) from error
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            # Nobody has cancelled this: an async function has let one of its own escape.
            raise RewardFailure(f"reward {entry.label!r} raised CancelledError") from error
        if number is None:
            raise RewardFailure(f"reward {entry.label!r} returned {reprlib.repr(value)}, not a finite number")
        return number

    async def _call(self, entry: _Entry, problem: Problem, text: str, deadline: asyncio.Timeout) -> object:
        assert entry.function is not None
        if entry.trusted:
            return entry.function(problem, text)
        async with self._slot():
            deadline.reschedule(asyncio.get_running_loop().time() + self._timeout_s)
            value = await _in_daemon_thread(entry.function, _lent(problem), text)
        # Calling an async function only makes a coroutine; it runs here, under the same deadline.
        return await value if inspect.isawaitable(value) else value

    def _slot(self) -> asyncio.Semaphore:
        """A semaphore belongs to one event loop, and this object may be used from several in turn."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._slots = loop, asyncio.Semaphore(THREADS)
        return self._slots


def _lent(problem: Problem) -> Problem:
    """For a stranger's function, which may change what it is given; the next attempt is graded by the same problem."""
    if not any(isinstance(each, dict | list) for each in (problem.reference, *problem.columns.values())):
        return problem
    reference, columns = copy.deepcopy((problem.reference, dict(problem.columns)))
    return replace(problem, reference=reference, columns=columns)


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


def _post_format(problem: Problem, text: str) -> float:
    return float(post_format(text))


def _post_correct(problem: Problem, text: str) -> float:
    return float(post_correct(text, problem.reference))


BUILT_IN: Mapping[str, Reward] = {
    "format": _format,
    "correct": _correct,
    "gsm8k_post_format": _post_format,
    "gsm8k_post_correct": _post_correct,
}


def _resolve(
    name: str, kind: Kind, built_in: Mapping[str, Reward], timeout_s: float, columns: Iterable[str] | None
) -> _Entry:
    weight = weight_of(kind)
    if isinstance(kind, LengthReward):
        return _Entry(name, weight, lambda problem, text: kind.value(text), trusted=True)
    if isinstance(kind, PatternReward):
        return _Entry(name, weight, lambda problem, text: kind.value(text, timeout_s))
    if name in built_in:
        return _Entry(name, weight, built_in[name], trusted=True)
    found = adapted(name, load_object(name, "task.rewards"), columns)
    if not isinstance(found, Mapping):
        return _Entry(name, weight, found)
    wanted = kind.completions if isinstance(kind, FunctionReward) and len(found) > 1 else None
    forms = {form: found[form] for form in FORMS if form in found and wanted in (None, form)}
    function, *others = forms.values()
    return _Entry(name, weight, None if others else function, forms=forms)
