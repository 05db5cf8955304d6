"""Reads what `reset` and `step` of an environment return."""

import math
import reprlib
from collections.abc import Sequence
from dataclasses import replace

from dojang.environments.base import Step
from dojang.environments.calls import EnvironmentFailed
from dojang.types import Message, Outcome, Verdict

__all__ = ["as_messages", "as_step", "check_judged"]


def as_messages(found: object) -> tuple[Message, ...]:
    """Returns messages: text alone is one of the user. Raises EnvironmentFailed for anything else, or none."""
    if isinstance(found, str):
        return (Message("user", found),)
    if isinstance(found, Message):
        return (found,)
    if isinstance(found, Sequence) and found and all(isinstance(each, Message) for each in found):
        return tuple(found)
    raise EnvironmentFailed(f"the environment returned {reprlib.repr(found)}, where messages were expected")


def check_judged(verdict: Verdict) -> None:
    """Raises EnvironmentFailed if the judge failed."""
    if verdict.outcome is Outcome.JUDGE_ERROR:
        raise EnvironmentFailed(f"its answer could not be graded: {verdict.detail}")


def as_step(found: object) -> Step:
    """Returns the result of `step` as a Step. Raises EnvironmentFailed if it is none, or has no finite reward."""
    if isinstance(found, Verdict):
        found = Step(done=True, verdict=found)
    elif isinstance(found, bool | int | float) or hasattr(found, "__float__"):  # numpy's and torch's numbers, too
        found = Step(reward=float(found), done=True)
    elif not isinstance(found, Step):
        found = Step(messages=as_messages(found))
    for verdict in (found.verdict, found.if_last):
        if isinstance(verdict, Verdict):
            check_judged(verdict)
    numbers = {"reward": float(found.reward), **{name: float(value) for name, value in found.parts.items()}}
    if bad := [f"{name} {value}" for name, value in numbers.items() if not math.isfinite(value)]:
        raise EnvironmentFailed(f"step returned {', '.join(bad)}, which is not a finite number")
    return replace(found, reward=numbers["reward"], done=found.done or found.verdict is not None)
