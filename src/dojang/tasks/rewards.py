"""Weighted reward functions: compute the reward of a completion.

A reward is a plain or async function of the problem and the completion's text. `format`, `correct` and those of the
GSM8K post (gsm8k_post.py) are built in; reward_settings.py has lengths and patterns; any other is named
`package.module:function` and imported when WeightedRewards is created (its signature: reward_signatures.py). Whether a
TRL function takes completions as messages or as text is found by trying both, once: prefer the form that raises less
often, then the one that distinguishes more completions, then TRL's form (messages, for a conversation). A function that
raises, hangs or returns no number ends in `RewardFailure`, which is not a wrong answer.

A custom function runs in a daemon thread: if it hangs, it blocks neither the event loop nor the end of the program, as
a thread of asyncio's executor would. Not covered: it cannot be stopped, only abandoned; and one that is stuck in C code
that holds the GIL (a slow regular expression, for example) blocks everything. Such a verifier should start a process.
An async function runs on the event loop and must not block it.
"""

import asyncio
import copy
import inspect
import math
import reprlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import SupportsFloat

from dojang.core.errors import ConfigError
from dojang.core.section import load_object
from dojang.core.user_code import describe_exception
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
from dojang.tasks.reward_signatures import FORMS, NOT_APPLICABLE, Completions, Reward, adapt_reward, sample_completions
from dojang.types import Outcome, Problem, Verdict, plain_prompt

__all__ = ["BUILT_IN", "RewardFailure", "Score", "WeightedRewards"]

THREADS = 16
"""Maximum number of custom functions running at a time; with more, a correct one might miss its deadline."""


class RewardFailure(Exception):
    """A reward could not be computed; the message has its name and the reason."""


@dataclass(frozen=True, slots=True)
class Score:
    """Weighted sum, and each applicable reward before its weight."""

    total: float
    parts: Mapping[str, float]
    terms: Mapping[str, tuple[float, float]]
    """Verdict.terms."""


@dataclass(frozen=True, slots=True)
class _Entry:
    label: str
    weight: float
    function: Reward | None
    """None until one of `forms` is chosen."""
    trusted: bool = False
    forms: Mapping[Completions, Reward] = field(default_factory=dict)


class WeightedRewards:
    """Computes every reward of a completion, and their weighted sum."""

    def __init__(
        self,
        rewards: Mapping[str, Kind],
        *,
        timeout_s: float,
        built_in: Mapping[str, Reward] | None = None,
        columns: Iterable[str] | None = (),
    ) -> None:
        """`built_in` are the named rewards; None: BUILT_IN. `columns` are the columns that functions may take; None if
        unknown."""
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
        """Computes the score. Raises RewardFailure if any reward cannot be computed."""
        parts: dict[str, float] = {}
        total = 0.0
        for place, entry in enumerate(self._entries):
            if entry.function is None:
                entry = self._entries[place] = await self._with_best_form(
                    entry, problem, (text, *sample_completions(problem))
                )
            value = await self._compute(entry, problem, text)
            if value is not None:
                parts[entry.label] = value
                total += entry.weight * value
        if not math.isfinite(total):
            raise RewardFailure(f"the weighted sum of {parts} is {total}, not a finite number")
        weights = {entry.label: entry.weight for entry in self._entries}
        return Score(total, parts, {label: (weights[label], value) for label, value in parts.items()})

    async def check(self, problem: Problem) -> None:
        """Tries functions with TRL's or veRL's signature on sample completions of a problem, and chooses their form of
        completions. Raises ConfigError if one fails on all of them."""
        for place, entry in enumerate(self._entries):
            if entry.forms:
                try:
                    self._entries[place] = await self._with_best_form(entry, problem, sample_completions(problem))
                except RewardFailure as failure:
                    forms = " and as ".join(entry.forms)
                    raise ConfigError(
                        f"{failure}; it was tried on sample completions of {problem.id}, as {forms}"
                    ) from failure

    async def _with_best_form(self, entry: _Entry, problem: Problem, texts: Sequence[str]) -> _Entry:
        """Returns the entry with the form of completions that suits its function best."""
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
            messages = list(dict.fromkeys(map(str, failures)))
            raise RewardFailure("; ".join(messages)[:1000]) from failures[0]
        return replace(entry, function=entry.forms[max(ranked)[-1]])

    async def verdict(self, problem: Problem, text: str, outcome: Callable[[float], tuple[Outcome, str]]) -> Verdict:
        """Verdict with these rewards alone. `outcome` returns the outcome and the detail for their weighted sum."""
        started = time.perf_counter()
        try:
            score = await self.score(problem, text)
            if not score.parts:
                raise RewardFailure("no reward function applies to it")
        except RewardFailure as failure:
            seconds = time.perf_counter() - started
            return Verdict(Outcome.JUDGE_ERROR, None, detail=f"{problem.id}: {failure}", seconds=seconds)
        found, detail = outcome(score.total)
        return Verdict(
            found,
            score.total,
            passed=int(found is Outcome.ACCEPTED),
            parts=score.parts,
            terms=score.terms,
            detail=detail,
            seconds=time.perf_counter() - started,
        )

    async def add_to(self, verdict: Verdict, problem: Problem, text: str) -> Verdict:
        """Adds these rewards to the verdict; returns a JUDGE_ERROR if one cannot be computed."""
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
        """Computes one reward; None if it does not apply."""
        deadline = asyncio.timeout(None)
        try:
            async with deadline:
                value = await self._call(entry, problem, text, deadline)
            if value is NOT_APPLICABLE:
                return None
            number = _number(value)
        except (Exception, SystemExit) as error:  # custom code may raise anything; the run continues
            why = f"raised {describe_exception(error)}"
            if deadline.expired():
                why = f"took longer than timeout_s={self._timeout_s:g}"
            raise RewardFailure(f"reward {entry.label!r} {why}"[:500]) from error
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            # This task was not cancelled: the async function raised its own CancelledError.
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
            value = await _in_daemon_thread(entry.function, _copied(problem), text)
        # An async function returns a coroutine; it runs here, under the same deadline.
        return await value if inspect.isawaitable(value) else value

    def _slot(self) -> asyncio.Semaphore:
        """Returns the semaphore of the current event loop: several loops may use this object in turn."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._slots = loop, asyncio.Semaphore(THREADS)
        return self._slots


def _copied(problem: Problem) -> Problem:
    """Copies the problem for a custom function, which may modify it; later completions use the same problem."""
    if not any(isinstance(each, dict | list) for each in (problem.reference, *problem.columns.values())):
        return problem
    reference, columns = copy.deepcopy((problem.reference, dict(problem.columns)))
    return replace(problem, reference=reference, columns=columns)


def _number(value: object) -> float | None:
    # SupportsFloat accepts numpy and torch scalars and rejects text, which float() would parse.
    number = float(value) if isinstance(value, SupportsFloat) else math.nan
    return number if math.isfinite(number) else None


async def _in_daemon_thread(function: Reward, problem: Problem, text: str) -> object:
    """Calls the function in a daemon thread, which does not delay the exit, and waits for its result."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[object, BaseException | None]] = loop.create_future()

    def deliver(value: object, error: BaseException | None) -> None:
        if not done.done():  # the caller may have timed out
            done.set_result((value, error))

    def work() -> None:
        value: object = None
        error: BaseException | None = None
        try:
            value = function(problem, text)
        except BaseException as raised:  # also sys.exit(), which would leave the caller waiting
            error = raised
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(deliver, value, error)

    threading.Thread(target=work, name=f"reward {function!r}"[:80], daemon=True).start()
    value, error = await done
    if error is not None:
        raise error if isinstance(error, Exception | SystemExit) else RuntimeError(repr(error))
    return value


BUILT_IN: Mapping[str, Reward] = {
    "format": lambda problem, text: float(follows_format(text)),
    "correct": lambda problem, text: float(is_correct(text, problem.reference)),
    "gsm8k_post_format": lambda problem, text: float(post_format(text)),
    "gsm8k_post_correct": lambda problem, text: float(post_correct(text, problem.reference)),
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
    found = adapt_reward(name, load_object(name, "task.rewards"), columns)
    if not isinstance(found, Mapping):
        return _Entry(name, weight, found)
    wanted = kind.completions if isinstance(kind, FunctionReward) and len(found) > 1 else None
    forms = {form: found[form] for form in FORMS if form in found and wanted in (None, form)}
    function, *others = forms.values()
    return _Entry(name, weight, None if others else function, forms=forms)
