"""Environments with tools: functions that the model may call before it answers."""

import inspect
import reprlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from dojang.core.errors import ConfigError
from dojang.environments.base import Environment, Reply, StepResult
from dojang.environments.calls import in_thread
from dojang.tool_calls.calls import MalformedCall, ToolCall
from dojang.tool_calls.json_calls import parse_json_calls
from dojang.types import Message

__all__ = ["ToolEnvironment", "schemas_of", "shortened"]

_MOST_CHARS = 4000


def schemas_of(tools: Sequence[Callable[..., Any]]) -> list[Mapping[str, object]]:
    """Returns JSON schemas of functions, from their type hints and docstrings. Raises ConfigError if one has none."""
    if not isinstance(tools, Sequence) or not all(callable(each) for each in tools):
        raise ConfigError(f"workflow: `tools` returned {reprlib.repr(tools)}; it must return a list of functions")
    return [_schema(getattr(each, "__func__", each)) for each in tools]


@lru_cache(maxsize=256)  # an environment may make its tools anew for every episode
def _schema(function: Callable[..., Any]) -> Mapping[str, object]:
    from transformers.utils.chat_template_utils import get_json_schema

    try:
        found: dict[str, Any] = get_json_schema(function)
    except Exception as error:  # it raises several kinds for functions without hints or docstring
        raise ConfigError(
            f"tool {getattr(function, '__qualname__', function)}: {error}; give every argument a type hint and a line "
            "under `Args:` in the docstring"
        ) from error
    found["function"]["parameters"]["properties"].pop("self", None)
    return found


class ToolEnvironment(Environment):
    """Calls the tools that a reply asks for, and sends back their results. A reply without tool calls is the answer."""

    most_chars = _MOST_CHARS
    """Longest result of a tool; longer ones are cut in the middle."""

    async def step(self, reply: Reply) -> StepResult:
        calls = parse_json_calls(reply.text) if reply.calls is None else reply.calls
        if not calls:
            return await self.answer(reply)
        tools = {each.__name__: each for each in await in_thread(self.tools)}
        return [await self._result(tools, call) for call in calls]

    async def answer(self, reply: Reply) -> StepResult:
        """Grades the answer, with the task of the run."""
        return await self.grade(reply.text)

    async def _result(self, tools: Mapping[str, Callable[..., Any]], call: ToolCall | MalformedCall) -> Message:
        """Calls one tool. Mistakes of the model are told to it; errors of the tool itself fail the episode."""
        if isinstance(call, MalformedCall):
            return Message("tool", f"error: the tool call {call.reason}")
        if call.name not in tools:
            known = ", ".join(tools)
            return Message("tool", f"error: there is no tool {call.name!r}; there are: {known}", call.name)
        tool = tools[call.name]
        try:
            inspect.signature(tool).bind(**call.arguments)
        except TypeError as error:
            return Message("tool", f"error: {call.name}: {error}", call.name)
        found = await (tool if inspect.iscoroutinefunction(tool) else partial(in_thread, tool))(**call.arguments)
        text = str(await found if inspect.isawaitable(found) else found)
        return Message("tool", shortened(text, self.most_chars), call.name)


def shortened(text: str, most: int = _MOST_CHARS) -> str:
    """Returns the beginning and the end of a long text."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
