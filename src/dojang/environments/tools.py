"""Environments with tools: functions that the model may call before it answers."""

import errno
import inspect
import logging
import reprlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any
from weakref import WeakKeyDictionary

from dojang.core.errors import ConfigError, DojangError
from dojang.core.user_code import describe_exception, message_of
from dojang.environments.base import Environment, Reply, StepResult
from dojang.environments.calls import EnvironmentFailed, in_thread
from dojang.environments.tool_arguments import wrong_argument
from dojang.judge.worker_handle import WorkerFailed
from dojang.tool_calls.calls import MalformedCall, ToolCall
from dojang.types import Message

__all__ = ["ToolEnvironment", "is_outage", "schemas_of", "shortened"]

logger = logging.getLogger(__name__)

_MOST_CHARS = 4000
_MACHINERY = (EnvironmentFailed, DojangError, WorkerFailed, ConnectionError, TimeoutError)
"""Exceptions that are never the model's doing."""
_SHORTAGES = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO)
_OF_VALUES = (errno.EINVAL, errno.EOVERFLOW, errno.ERANGE, errno.EDOM)
"""Errors of the system about a value, which the model may have chosen."""
_AWS_OUTAGES = {
    "BandwidthLimitExceeded",
    "EC2ThrottledException",
    "PriorRequestNotComplete",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "RequestTimeout",
    "RequestTimeoutException",
    "SlowDown",
    "ThrottledException",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
    "TransactionInProgressException",
}
"""Codes of AWS for too many requests and for time-outs, which some of its services answer with the status 400."""
_WARNED: set[tuple[str, type[BaseException]]] = set()
_SCHEMAS: WeakKeyDictionary[Callable[..., Any], Mapping[str, object]] = WeakKeyDictionary()
_ORDINARY = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def schemas_of(tools: Sequence[Callable[..., Any]]) -> list[Mapping[str, object]]:
    """Returns JSON schemas of functions, from their type hints and docstrings. Raises ConfigError if one has none, or
    if two have the same name."""
    if not isinstance(tools, Sequence) or not all(callable(each) for each in tools):
        raise ConfigError(f"workflow: `tools` returned {reprlib.repr(tools)}; it must return a list of functions")
    for each in tools:
        if isinstance(each, partial) or not isinstance(getattr(each, "__name__", None), str):
            raise ConfigError(f"tool {reprlib.repr(each)}: it has no name; give a function or a method")
    if twice := [name for name, count in Counter(each.__name__ for each in tools).items() if count > 1]:
        raise ConfigError(f"workflow: two tools have the name {twice[0]!r}; rename one")
    return [_schema(_function(each)) for each in tools]


def _function(tool: Callable[..., Any]) -> Callable[..., Any]:
    return getattr(tool, "__func__", tool)


def _schema(function: Callable[..., Any]) -> Mapping[str, object]:
    """Returns the schema of a function. It is kept as long as the function: those that an environment makes for one
    episode hold the environment."""
    try:
        if function not in _SCHEMAS:
            _SCHEMAS[function] = _made_schema(function)
        return _SCHEMAS[function]
    except TypeError:  # an object that has no hash, or no weak references
        return _made_schema(function)


def _made_schema(function: Callable[..., Any]) -> Mapping[str, object]:
    from transformers.utils.chat_template_utils import get_json_schema

    try:
        found: dict[str, Any] = get_json_schema(function)
    except Exception as error:  # it raises several kinds for functions without hints or docstring
        raise ConfigError(
            f"tool {getattr(function, '__qualname__', function)}: {error}; give every argument a type hint and a line "
            "under `Args:` in the docstring"
        ) from error
    found["function"]["parameters"]["properties"].pop("self", None)
    for each in inspect.signature(function).parameters.values():
        if each.kind not in _ORDINARY and each.name in found["function"]["parameters"]["properties"]:
            raise ConfigError(
                f"tool {getattr(function, '__qualname__', function)}: tools are called with arguments by name, which "
                f"{each.name!r} cannot be given by ({each.kind.description}); make it an ordinary parameter"
            )
    return found


class ToolEnvironment(Environment):
    """Calls the tools that a reply asks for, and sends back their results. A reply without tool calls is the answer."""

    most_chars = _MOST_CHARS
    """Longest result of a tool; longer ones are cut in the middle."""

    async def step(self, reply: Reply) -> StepResult:
        if not reply.calls:
            return await self._answered(reply)
        found: Any = await in_thread(self.tools)
        tools = {each.__name__: each for each in (await found if inspect.isawaitable(found) else found)}
        return [await self._result(tools, call) for call in reply.calls]

    def answer(self, reply: Reply) -> StepResult | Awaitable[StepResult]:
        """Grades the answer, with the task of the run."""
        return self.grade(reply.text)

    async def _answered(self, reply: Reply) -> StepResult:
        """Calls `answer`, which may be plain or async, as `step` may."""
        own = getattr(self.answer, "__func__", None) is not ToolEnvironment.answer
        in_place = not own or inspect.iscoroutinefunction(self.answer)
        found: Any = self.answer(reply) if in_place else await in_thread(self.answer, reply)
        if inspect.isawaitable(found):
            found = await found
        return found  # type: ignore[no-any-return]  # read by as_step

    async def _result(self, tools: Mapping[str, Callable[..., Any]], call: ToolCall | MalformedCall) -> Message:
        """Calls one tool. Mistakes of the model and exceptions of the tool are told to it; a failure of the machinery
        fails the episode."""
        if isinstance(call, MalformedCall):
            return Message("tool", f"error: the tool call {call.reason}")
        if call.name not in tools:
            known = ", ".join(tools)
            return Message("tool", f"error: there is no tool {call.name!r}; there are: {known}", call.name)
        tool = tools[call.name]
        if wrong := _wrong_call(tool, call.arguments):
            return Message("tool", f"error: {call.name}: {wrong}", call.name)
        try:
            found = await (tool if inspect.iscoroutinefunction(tool) else partial(in_thread, tool))(**call.arguments)
            text = str(await found if inspect.isawaitable(found) else found)
        except (Exception, SystemExit) as error:
            if is_outage(error):
                raise
            _warn_once(call.name, error)
            text = f"error: {call.name} raised {type(error).__name__}: {message_of(error)}"
        return Message("tool", shortened(text, self.most_chars), call.name)


def _wrong_call(tool: Callable[..., Any], arguments: Mapping[str, object]) -> str:
    """Returns why a tool cannot be called with these arguments; empty if it can."""
    try:
        inspect.signature(tool).bind(**arguments)
    except TypeError as error:
        return str(error)
    function: Any = _schema(_function(tool))["function"]
    return wrong_argument(arguments, function["parameters"])


def is_outage(error: BaseException) -> bool:
    """Returns whether an exception of a tool is a failure of the machinery: EnvironmentFailed, an error of dojang, an
    error of the system that is not about a file, such as a refused connection or a full disk, or a server's answer
    that it cannot serve now. Exceptions that it comes from count, since clients of servers wrap theirs."""
    known, waiting = set[int](), [error]
    while waiting:
        seen = waiting.pop()
        if id(seen) in known:  # an exception may come from itself
            continue
        known.add(id(seen))
        if isinstance(seen, _MACHINERY) or _of_system(seen) or _of_server(seen):
            return True
        inside = seen.exceptions if isinstance(seen, BaseExceptionGroup) else ()  # of asyncio.TaskGroup
        origin = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
        waiting += [*inside, *([] if origin is None else [origin])]
    return False


def _of_system(error: BaseException) -> bool:
    """Returns whether the system refused something, and not because of the name of a file that the model chose. An
    OSError without a number is that of a library, such as for an image that cannot be read."""
    if not isinstance(error, OSError) or error.errno is None or error.errno in _OF_VALUES:
        return False
    return error.filename is None or error.errno in _SHORTAGES


def _of_server(error: BaseException) -> bool:
    """Returns whether an exception of urllib, requests, httpx, boto3 or a client built on them has a status that says
    that the server failed, or has too many requests."""
    response = _attribute(error, "response")
    statuses = [_attribute(of, name) for of in (error, response) for name in ("status_code", "status", "code")]
    statuses.append(_item(response, "ResponseMetadata", "HTTPStatusCode"))
    refused = (HTTPStatus.TOO_MANY_REQUESTS, *range(500, 600))
    if any(isinstance(each, int) and each in refused for each in statuses):
        return True
    code = _item(response, "Error", "Code")
    return isinstance(code, str) and code in _AWS_OUTAGES


def _attribute(of: object, name: str) -> object:
    try:
        return getattr(of, name, None)
    except Exception:  # a property of someone else's exception
        return None


def _item(of: object, *keys: str) -> object:
    """Returns what nested mappings have, such as the response of boto3."""
    for key in keys:
        try:
            of = of.get(key) if isinstance(of, Mapping) else None
        except Exception:  # a mapping of someone else
            return None
    return of


def _warn_once(name: str, error: BaseException) -> None:
    """Warns of the first exception of a type, which may be a bug of the tool."""
    if (key := (name, type(error))) not in _WARNED:
        _WARNED.add(key)
        said = describe_exception(error)
        logger.warning("the tool %s raised %s; it was told to the model, and the episode goes on", name, said)


def shortened(text: str, most: int = _MOST_CHARS) -> str:
    """Returns the beginning and the end of a long text."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
