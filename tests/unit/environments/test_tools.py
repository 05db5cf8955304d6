"""Tool calls: parsed exactly, answered in order, mistakes of the model told to it."""

import asyncio
import gc
import io
import socket
import weakref
from functools import partial, update_wrapper
from http.client import HTTPMessage
from urllib.error import HTTPError

import pytest

from dojang.core.errors import ConfigError, DataError
from dojang.environments.base import Reply
from dojang.environments.calls import EnvironmentFailed, call_with_limit
from dojang.environments.tools import ToolEnvironment, schemas_of
from dojang.judge.worker_handle import WorkerFailed
from dojang.tool_calls.json_calls import TaggedJson
from dojang.types import Message, Outcome, Verdict


def add(a: int, b: int = 1) -> int:
    """
    Adds two numbers.

    Args:
        a: First number.
        b: Second number.
    """
    return a + b


def wrapped(error: Exception, origin: BaseException) -> Exception:
    """An exception that comes from another, as clients of servers raise it."""
    error.__cause__ = origin
    return error


def http_error(status: int) -> Exception:
    return HTTPError("http://127.0.0.1/page", status, "no", HTTPMessage(), None)


class NoResponse(Exception):
    @property
    def response(self) -> object:
        raise RuntimeError("no response yet")


class ClientError(Exception):
    """As botocore's."""

    def __init__(self, code: object, status: object) -> None:
        super().__init__(f"An error occurred ({code}) when calling the Search operation")
        self.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}


class Closed(dict[str, object]):
    def get(self, key: object, default: object = None) -> object:
        raise RuntimeError("body was closed")


class ClosedResponse(Exception):
    response = Closed()


class Unreadable(Exception):
    def __str__(self) -> str:
        raise AttributeError("no message")


FAILURES: dict[str, BaseException] = {
    "value": ValueError("Exceeds the limit"),
    "file": FileNotFoundError(2, "No such file or directory", "/app/x"),
    "exit": SystemExit(3),
    "surrogate": ValueError("\ud800"),
    "read": wrapped(ValueError("no such page"), KeyError("page")),
    "refused": ConnectionRefusedError(111, "Connection refused"),
    "timeout": TimeoutError(),
    "no host": socket.gaierror(-2, "Name or service not known"),
    "disk": OSError(28, "No space left on device", "/app/x"),
    "client": wrapped(RuntimeError("the request failed"), ConnectionResetError()),
    "unreadable": Unreadable(),
    "image": io.UnsupportedOperation("not readable"),
    "not found": http_error(404),
    "unavailable": http_error(503),
    "too many": http_error(429),
    "aws, too many": ClientError("ThrottlingException", 400),
    "aws, unavailable": ClientError("InternalFailure", 500),
    "aws, wrong": ClientError("ValidationException", 400),
    "aws, time-out": ClientError("RequestTimeout", 400),
    "aws, closed": ClosedResponse("no such page"),
    "aws, odd": ClientError(["ThrottlingException"], None),
    "itself": wrapped(ValueError("bad"), ValueError("worse")),
    "value of time": OSError(75, "Value too large for defined data type"),
    "group": ExceptionGroup("in a task", [ValueError("a"), ConnectionError("backend down")]),
    "own group": ExceptionGroup("in a task", [EnvironmentFailed("the simulator is gone")]),
    "property": NoResponse("bad"),
    "own": EnvironmentFailed("the simulator is gone"),
    "dojang": DataError("the corpus is gone"),
    "sandbox": WorkerFailed("the sandbox is gone"),
}


FAILURES["itself"].__cause__ = FAILURES["itself"]


class Calculator(ToolEnvironment):
    def tools(self):  # type: ignore[no-untyped-def]
        return [add, self.memory, self.fails]

    def fails(self, how: str) -> str:
        """
        Raises an exception.

        Args:
            how: Name of the failure.
        """
        raise FAILURES[how]

    async def memory(self, key: str) -> str:
        """
        Looks up a value.

        Args:
            key: Name of the value.
        """
        return {"x": "seven", "long": "a" * 5000 + "z" * 5000}[key]


def reply_of(text: str) -> Reply:
    return Reply(text, 0, 3, calls=TaggedJson().parse(text, {}).calls)


def step(text: str) -> list[Message]:
    found = asyncio.run(Calculator().step(reply_of(text)))
    assert isinstance(found, list)
    return found


def test_several_calls_of_a_reply_are_answered_in_order() -> None:
    reply = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>' + (
        '<tool_call>{"name": "memory", "arguments": {"key": "x"}}</tool_call>'
    )
    assert step(reply) == [Message("tool", "5", "add"), Message("tool", "seven", "memory")]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ('{"name": "sub", "arguments": {}}', "there is no tool 'sub'; there are: add, memory, fails"),
        ('{"name": "add", "arguments": {"c": 1}}', "add: missing a required argument: 'a'"),
        ('{"name": "add", "arguments": {"a": 1, "z": 1}}', "unexpected keyword argument 'z'"),
        ('{"name": }', "is no valid JSON"),
    ],
)
def test_mistakes_of_the_model_are_told_to_it(call: str, told: str) -> None:
    (message,) = step(f"<tool_call>{call}</tool_call>")
    assert message.role == "tool"
    assert message.content.startswith("error: ")
    assert told in message.content


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("value", "error: fails raised ValueError: Exceeds the limit"),
        ("file", "error: fails raised FileNotFoundError: [Errno 2] No such file or directory: '/app/x'"),
        ("exit", "SystemExit"),
        ("surrogate", "error: fails raised ValueError"),
        ("read", "error: fails raised ValueError: no such page"),
        ("image", "error: fails raised UnsupportedOperation: not readable"),
        ("not found", "error: fails raised HTTPError: HTTP Error 404: no"),
        ("aws, wrong", "error: fails raised ClientError: An error occurred (ValidationException) when calling"),
        ("aws, closed", "error: fails raised ClosedResponse: no such page"),
        ("aws, odd", "error: fails raised ClientError: An error occurred (['ThrottlingException']) when calling"),
        ("itself", "error: fails raised ValueError: bad"),
        ("value of time", "error: fails raised OSError: [Errno 75] Value too large"),
        ("property", "error: fails raised NoResponse: bad"),
        ("unreadable", "error: fails raised Unreadable: (its message cannot be read)"),
    ],
)
def test_an_exception_of_a_tool_is_told_to_the_model(how: str, told: str) -> None:
    """It may have provoked it: a failed episode has no reward, which may be better than that of a bad one."""
    (message,) = step(f'<tool_call>{{"name": "fails", "arguments": {{"how": "{how}"}}}}</tool_call>')
    assert message.content.startswith("error: ")
    assert told in message.content


@pytest.mark.parametrize(
    "how",
    [
        "refused",
        "timeout",
        "no host",
        "unavailable",
        "too many",
        "aws, too many",
        "aws, unavailable",
        "aws, time-out",
        "group",
        "own group",
        "disk",
        "client",
        "own",
        "dojang",
        "sandbox",
    ],
)
def test_an_outage_in_a_tool_is_a_failure(how: str) -> None:
    reply = reply_of(f'<tool_call>{{"name": "fails", "arguments": {{"how": "{how}"}}}}</tool_call>')
    with pytest.raises(EnvironmentFailed) as caught:
        asyncio.run(call_with_limit(Calculator().step, reply, timeout_s=60))
    assert str(FAILURES[how]) in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ('{"a": "1"}', 'error: add: `a` must be an integer, not "1"'),
        ('{"a": 1, "b": 1.5}', "error: add: `b` must be an integer, not 1.5"),
    ],
)
def test_arguments_of_a_wrong_type_are_told_to_the_model(arguments: str, told: str) -> None:
    assert step(f'<tool_call>{{"name": "add", "arguments": {arguments}}}</tool_call>') == [Message("tool", told, "add")]


def test_parameters_without_a_name_are_refused() -> None:
    def double(x: int, /) -> int:
        """
        Doubles.

        Args:
            x: A number.
        """
        return 2 * x

    with pytest.raises(
        ConfigError, match=r"double: .* 'x' cannot be given by \(positional-only\); make it an ordinary"
    ):
        schemas_of([double])


def test_parameters_of_any_name_are_refused() -> None:
    def total(**amounts: int) -> int:
        """
        Adds.

        Args:
            amounts: Numbers by name.
        """
        return sum(amounts.values())

    with pytest.raises(ConfigError, match=r"total: .* 'amounts' cannot be given by \(variadic keyword\)"):
        schemas_of([total])


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two tools have the name 'add'; rename one"):
        schemas_of([add, add])


def test_objects_are_no_tools() -> None:
    with pytest.raises(ConfigError, match="it has no name; give a function or a method"):
        schemas_of([partial(add, 1)])
    with pytest.raises(ConfigError, match="it has no name; give a function or a method"):
        schemas_of([update_wrapper(partial(add, 1), add)])


def test_tools_may_be_asked_for_by_an_async_method() -> None:
    class Async(ToolEnvironment):
        async def tools(self):  # type: ignore[no-untyped-def, override]
            return [add]

    call = '<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>'
    assert asyncio.run(Async().step(reply_of(call))) == [Message("tool", "3", "add")]


def test_environments_do_not_outlive_their_episode() -> None:
    """Also if their tools hold them, as functions inside a method do."""

    class Closure(ToolEnvironment):
        def tools(self):  # type: ignore[no-untyped-def]
            def own() -> str:
                """Names the environment."""
                return str(self)

            return [own]

    environment = Closure()
    schemas_of(environment.tools())
    kept = weakref.ref(environment)
    del environment
    gc.collect()
    assert kept() is None


def test_a_long_result_keeps_its_ends() -> None:
    (message,) = step('<tool_call>{"name": "memory", "arguments": {"key": "long"}}</tool_call>')
    assert len(message.content) < 4100
    assert message.content.startswith("aaa")
    assert message.content.endswith("zzz")
    assert "6000 characters left out" in message.content


@pytest.mark.parametrize(
    "reply",
    [
        Reply("5", 0, 3, calls=()),
        Reply("5", 0, 3),
        Reply('{"name": "Bob", "parameters": {}}', 0, 3),  # the environment has no tools: an answer in JSON
    ],
)
def test_a_reply_without_calls_is_graded(reply: Reply) -> None:
    environment = Calculator()

    async def grade(text: str) -> Verdict:
        return Verdict(Outcome.ACCEPTED, 1.0, detail=text)

    environment.grade = grade
    assert asyncio.run(environment.step(reply)) == Verdict(Outcome.ACCEPTED, 1.0, detail=reply.text)


def test_schemas_come_from_hints_and_docstrings() -> None:
    first, second, _ = schemas_of(Calculator().tools())
    assert first["function"]["name"] == "add"  # type: ignore[index]
    assert first["function"]["parameters"]["required"] == ["a"]  # type: ignore[index]
    assert list(second["function"]["parameters"]["properties"]) == ["key"]  # type: ignore[index]


def test_a_tool_without_hints_is_refused() -> None:
    def silent(x):  # type: ignore[no-untyped-def]
        return x

    with pytest.raises(ConfigError, match=r"tool .*silent.*; give every argument a type hint"):
        schemas_of([silent])
