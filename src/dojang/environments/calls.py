"""Calls of an environment's methods: async ones are awaited, plain ones run in a thread, both with a time limit."""

import asyncio
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from dojang.core.errors import DojangError
from dojang.core.user_code import describe_exception, message_of

__all__ = ["EnvironmentFailed", "call_with_limit", "in_thread"]


class EnvironmentFailed(Exception):
    """An environment raised, exceeded its time limit or returned nonsense: its episode has no reward. Raise it in an
    environment, a tool or an agent for a failure that is not the model's."""


async def call_with_limit(method: Callable[..., Any], *arguments: object, timeout_s: float, name: str = "") -> Any:
    """Calls a method; raises EnvironmentFailed if it raises (also SystemExit, or CancelledError without a cancellation)
    or takes longer than `timeout_s`. `name` is that of the method in errors."""
    name = name or getattr(method, "__qualname__", str(method))
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            if inspect.iscoroutinefunction(method):
                return await method(*arguments)
            found = await in_thread(method, *arguments)
            return await found if inspect.isawaitable(found) else found
    except TimeoutError as error:
        if not limit.expired():
            raise EnvironmentFailed(f"{name} raised {describe_exception(error)}") from error
        raise EnvironmentFailed(f"{name} took longer than workflow.timeout_s={timeout_s:g}") from error
    except asyncio.CancelledError as error:
        if (task := asyncio.current_task()) is None or task.cancelling():
            raise
        raise EnvironmentFailed(f"{name} raised CancelledError") from error
    except EnvironmentFailed:
        raise
    except DojangError as error:  # its message is for the user
        raise EnvironmentFailed(str(error)) from error
    except (Exception, SystemExit) as error:
        raise EnvironmentFailed(f"{name} raised {describe_exception(error)}") from error


async def in_thread(method: Callable[..., Any], /, *arguments: object, **named: object) -> Any:
    """Runs a blocking method in a new thread. A pool would let a few environments that hang, or a thousand that
    sleep, hold up all others; and a daemon thread that hangs does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Any] = loop.create_future()

    def finish(found: Any, error: BaseException | None) -> None:
        if not result.done():  # the caller may have given up
            result.set_result(found) if error is None else result.set_exception(error)

    def run() -> None:
        found, failure = None, None
        try:
            found = method(*arguments, **named)
        except BaseException as error:
            # asyncio refuses StopIteration, and SystemExit would end the run
            failure = error if isinstance(error, Exception) and not isinstance(error, StopIteration) else None
            failure = failure or RuntimeError(f"{type(error).__name__}: {message_of(error)}")
        with suppress(RuntimeError):  # the loop is closed: the run has ended
            loop.call_soon_threadsafe(finish, found, failure)

    threading.Thread(target=run, daemon=True, name="environment").start()
    return await result
