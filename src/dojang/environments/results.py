"""Reads results of environments and agents.

They come from code of the user, so they may hold anything: a result that cannot be used is a failure of the
environment, never of the run.
"""

import math
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from dojang.core.safe_text import replace_surrogates
from dojang.core.user_code import describe_exception
from dojang.environments.base import Step
from dojang.environments.calls import EnvironmentFailed
from dojang.types import Message, Outcome, Verdict

__all__ = ["as_messages", "as_step", "as_verdict"]

_MOST = 1e30
"""Largest absolute value of a reward, so that no sum over turns and samples overflows."""
_ROLES = ("system", "user", "assistant", "tool", "text")
_MESSAGES = "text, a dojang.Message, {'role': 'user', 'content': '...'}, or a list of messages"
_RETURNS = {
    "reset": _MESSAGES,
    "step": f"{_MESSAGES} to go on; a number, a dojang.Verdict or a dojang.Step",
    "the agent": "a number, text, a dojang.Verdict, a dojang.Step, or None after it posted its reward",
}
_GYMNASIUM = {
    "reset": "for Gymnasium's (observation, info), return the observation as text",
    "step": "for Gymnasium's (observation, reward, terminated, truncated, info), return "
    "dojang.Step(observation, reward, done=terminated or truncated)",
}


@contextmanager
def _reading() -> Iterator[None]:
    """Raises EnvironmentFailed for any error: objects of the user, such as arrays, may raise it when they are read."""
    try:
        yield
    except EnvironmentFailed:
        raise
    except Exception as error:
        raise EnvironmentFailed(f"its result cannot be read: {describe_exception(error)}") from error


@_reading()
def as_messages(found: object, source: str = "step") -> tuple[Message, ...]:
    """Returns messages: text alone is one of the user, and lone surrogates in it are replaced. Raises EnvironmentFailed
    for anything else, or none. `source` is the method that returned it."""
    if isinstance(found, str):
        return (Message("user", replace_surrogates(found)),)
    messages = [found] if _is_message(found) else found
    if isinstance(messages, Sequence) and messages and all(_is_message(each) for each in messages):
        return tuple(_message(each, source) for each in messages)
    hint = f"; {_GYMNASIUM[source]}" if isinstance(found, tuple) and source in _GYMNASIUM else ""
    raise EnvironmentFailed(f"{_named(source)} returned {reprlib.repr(found)}; it may return {_RETURNS[source]}{hint}")


@_reading()
def as_step(found: object, source: str = "step") -> Step:
    """Returns the result of `step`, or of an agent, as a Step. Raises EnvironmentFailed if it is none, or a part of it
    is not what it should be."""
    if isinstance(found, Verdict):
        found = Step(done=True, verdict=found)
    elif hasattr(found, "__float__") and not isinstance(found, str | type):  # numpy's and torch's numbers, too
        found = Step(reward=found, done=True)  # type: ignore[arg-type]  # read below
    elif not isinstance(found, Step):
        found = Step(messages=as_messages(found, source))
    if not (found.if_last is None or callable(found.if_last) or isinstance(found.if_last, Verdict)):
        raise _wrong(source, "if_last", found.if_last, "a dojang.Verdict or a function that returns one")
    verdict = None if found.verdict is None else as_verdict(found.verdict, f"{_named(source)} returned verdict=")
    return Step(
        messages=found.messages,
        reward=_number(source, "reward", found.reward),
        done=_flag(source, "done", found.done) or verdict is not None,
        solved=None if found.solved is None else _flag(source, "solved", found.solved),
        parts=_parts(source, found.parts),
        detail=_text(source, "detail", "" if found.detail is None else found.detail),
        verdict=verdict,
        if_last=as_verdict(found.if_last, "if_last=") if isinstance(found.if_last, Verdict) else found.if_last,
        training_trace=found.training_trace,  # read where its session is known
    )


@_reading()
def as_verdict(found: object, said: str) -> Verdict:
    """Returns a verdict. Raises EnvironmentFailed if it is none, or if the judge failed; `said` precedes its value in
    the error."""
    if not isinstance(found, Verdict) or not isinstance(found.outcome, Outcome):
        raise EnvironmentFailed(f"{said}{reprlib.repr(found)}, where a dojang.Verdict was expected")
    if found.outcome is Outcome.JUDGE_ERROR:
        raise EnvironmentFailed(f"its answer could not be graded: {found.detail}")
    source = "its verdict"
    return replace(
        found,
        reward=_number(source, "reward", found.reward),
        parts=_parts(source, found.parts),
        detail=_text(source, "detail", "" if found.detail is None else found.detail),
    )


def _is_message(found: object) -> bool:
    return isinstance(found, Message) or (isinstance(found, Mapping) and {"role", "content"} <= found.keys())


def _message(found: Any, source: str) -> Message:
    """Returns a message as the tokenizer can write it."""
    if isinstance(found, Mapping):
        if unknown := sorted(map(str, found.keys() - {"role", "content", "name"})):
            raise EnvironmentFailed(
                f"{_named(source)} returned a message with {', '.join(unknown)}; it may have role, content and name"
            )
        found = Message(**found)
    if found.role not in _ROLES:
        raise _wrong(source, "a message of the role", found.role, f"one of {', '.join(_ROLES)}")
    name = _text(source, "the name of a message", found.name or "")
    return Message(found.role, _text(source, "a message with the content", found.content), name, found.tool_calls)


def _number(source: str, name: str, value: Any) -> float:
    # Text of numpy can be read as a number, and so can an array of one, in some versions.
    if not hasattr(value, "__float__") or isinstance(value, str):
        raise _wrong(source, name, value, "a number")
    if getattr(value, "ndim", 0):
        raise _wrong(source, name, value, "a finite number", "it is an array")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:  # an array of several numbers, or 10**400
        raise _wrong(source, name, value, "a finite number", str(error)) from error
    if not math.isfinite(number) or abs(number) > _MOST:
        raise _wrong(source, name, number, f"a finite number of at most {_MOST:g}")
    return number


def _flag(source: str, name: str, value: Any) -> bool:
    plain = value.item() if hasattr(value, "item") else value  # numpy's and torch's
    if isinstance(plain, int | float) and plain in (0, 1):
        return bool(plain)
    raise _wrong(source, name, value, "true or false")


def _text(source: str, name: str, value: object) -> str:
    if not isinstance(value, str):
        raise _wrong(source, name, value, "text")
    return replace_surrogates(value)


def _parts(source: str, parts: object) -> dict[str, float]:
    if not isinstance(parts, Mapping):
        raise _wrong(source, "parts", parts, "numbers by name")
    return {_text(source, "a part named", name): _number(source, str(name), value) for name, value in parts.items()}


def _wrong(source: str, name: str, value: object, expected: str, why: str = "") -> EnvironmentFailed:
    said = f"{_named(source)} returned {name} {reprlib.repr(value)}, which is not {expected}"
    return EnvironmentFailed(f"{said} ({why})" if why else said)


def _named(source: str) -> str:
    return f"`{source}`" if source in ("reset", "step") else source
