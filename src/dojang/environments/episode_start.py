"""Start of an episode: the environment is made and reset, and its first messages are rendered."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from dojang.core.errors import ConfigError, TooLong
from dojang.environments.base import Environment
from dojang.environments.calls import EnvironmentFailed, call_with_limit
from dojang.environments.episode import writing
from dojang.environments.results import as_messages
from dojang.environments.tools import schemas_of
from dojang.protocols import Renderer, Task
from dojang.types import Message, Problem
from dojang.workflows.grade_with_retries import grade_with_retries

__all__ = ["Started", "start_episode"]

_SHORTEN = (
    "the environment writes it, so let `reset` return less, lower rollout.max_tokens, or choose a model with a longer "
    "context: model.name=..., or `dojang env try NAME --model Qwen/Qwen2.5-0.5B-Instruct`"
)
_RESETS = 3
"""Number of times an episode is started before it is given up."""


@dataclass(frozen=True, slots=True)
class Started:
    """An environment that was reset."""

    environment: Environment
    messages: Sequence[Message]
    tokens: tuple[int, ...]
    renderer: Renderer
    """The run's, with the tools of the environment."""


class _FirstPromptTooLong(EnvironmentFailed):
    """The first messages leave no room for a reply within the context length."""


async def start_episode(
    make: Callable[[], Environment],
    task: Task,
    problem: Problem,
    renderer: Renderer,
    *,
    timeout_s: float,
    close: Callable[[Environment], Awaitable[None]],
) -> Started:
    """Makes and resets the environment of an episode, again after a failure. Raises EnvironmentFailed if that fails;
    environments that failed are given to `close`."""
    attempt = 0
    while True:
        environment = None
        try:
            environment = await _make(make, timeout_s, close)
            return await _reset(environment, task, problem, renderer, timeout_s)
        except BaseException as error:  # also a cancellation
            if environment is not None:
                await close(environment)
            attempt += 1
            again = isinstance(error, EnvironmentFailed) and not isinstance(error, _FirstPromptTooLong)
            if not again or attempt == _RESETS:
                raise


async def _make(
    make: Callable[[], Environment], timeout_s: float, close: Callable[[Environment], Awaitable[None]]
) -> Environment:
    """Calls the constructor, in a thread: it may load data or start a simulator. An environment that is made after the
    time limit is closed."""
    late, lock = threading.Event(), threading.Lock()
    unclaimed: list[Environment] = []

    def made() -> None:
        environment = make()
        with lock:
            unclaimed.append(environment)
            in_time = not late.is_set()
        if not in_time:
            asyncio.run(call_with_limit(environment.close, timeout_s=timeout_s))

    try:
        await call_with_limit(made, timeout_s=timeout_s, name="the constructor")
    except BaseException:
        with lock:
            late.set()
            left = list(unclaimed)
        for environment in left:
            await close(environment)
        raise
    return unclaimed.pop()


async def _reset(
    environment: Environment, task: Task, problem: Problem, renderer: Renderer, timeout_s: float
) -> Started:
    """Resets the environment, and asks for its tools then: they may depend on the problem."""
    environment.grade, environment.task = partial(grade_with_retries, task, problem), task
    found: object = problem.messages
    if not _inherited(environment.reset, Environment.reset):  # a thread per episode would be wasted
        found = await call_with_limit(environment.reset, problem, timeout_s=timeout_s)
    first = as_messages(found, "reset")
    try:
        if not _inherited(environment.tools, Environment.tools):
            schemas = schemas_of(await call_with_limit(environment.tools, timeout_s=timeout_s))
            renderer = renderer.with_tools(schemas) if schemas else renderer
        with writing(first):
            return Started(environment, first, renderer.render(first), renderer)
    except TooLong as error:
        said = str(error) if found is problem.messages else f"{error.problem}; {_SHORTEN}"
        raise _FirstPromptTooLong(said) from error
    except ConfigError as error:
        raise EnvironmentFailed(str(error)) from error


def _inherited(method: Callable[..., object], base: Callable[..., object]) -> bool:
    return getattr(method, "__func__", None) is base
