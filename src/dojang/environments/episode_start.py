"""Start of an episode: the environment is made and reset, and its first messages are rendered."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from dojang.core.user_code import describe_exception
from dojang.environments.base import Environment
from dojang.environments.calls import EnvironmentFailed, call_with_limit
from dojang.environments.episode import writing
from dojang.environments.results import as_messages
from dojang.environments.tools import schemas_of
from dojang.protocols import Renderer, Task, TooLong
from dojang.types import Message, Problem
from dojang.workflows.grade_with_retries import grade_with_retries

__all__ = ["Started", "start_episode", "tool_schemas"]

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
        environment = make()
        try:
            return await _reset(environment, task, problem, renderer, timeout_s)
        except EnvironmentFailed as error:
            await close(environment)
            attempt += 1
            if attempt == _RESETS or isinstance(error, _FirstPromptTooLong):
                raise


def tool_schemas(environment: Environment) -> list[Mapping[str, object]]:
    """Returns the schemas of an environment's tools. Raises EnvironmentFailed if `tools` raises."""
    try:
        tools = environment.tools()
    except Exception as error:
        raise EnvironmentFailed(f"{type(environment).__name__}.tools raised {describe_exception(error)}") from error
    return schemas_of(tools)


async def _reset(
    environment: Environment, task: Task, problem: Problem, renderer: Renderer, timeout_s: float
) -> Started:
    environment.grade, environment.task = partial(grade_with_retries, task, problem), task
    first = as_messages(await call_with_limit(environment.reset, problem, timeout_s=timeout_s), "reset")
    if schemas := tool_schemas(environment):
        renderer = renderer.with_tools(schemas)
    try:
        with writing(first):
            return Started(environment, first, renderer.render(first), renderer)
    except TooLong as error:
        raise _FirstPromptTooLong(str(error)) from error
