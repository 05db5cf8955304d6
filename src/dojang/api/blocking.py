"""Runs blocking calls in a script, in a thread, and where an event loop runs already (a notebook)."""

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from dojang.runs.stop import STOP_SIGNALS, in_main_thread

__all__ = ["call_without_loop", "handlers_restored", "run_coroutine"]

T = TypeVar("T")


def call_without_loop(function: Callable[[], T], on_interrupt: Callable[[], None] | None = None) -> T:
    """Calls a function that runs event loops. Where one runs already it is called in another thread, while
    this one waits; Ctrl-C then calls `on_interrupt`, and waits until the function has ended."""
    if not _loop_runs():
        return function()
    result: list[T] = []
    failure: list[BaseException] = []

    def call() -> None:
        try:
            result.append(function())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=call, name="dojang")
    with _on_ctrl_c(on_interrupt):
        thread.start()
        while thread.is_alive():
            thread.join(0.2)  # in short waits, so that signals are handled
    if failure:
        raise failure[0]
    return result[0]


def run_coroutine(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs a coroutine to its end, also where an event loop runs already."""
    return call_without_loop(lambda: asyncio.run(make()))


@contextmanager
def _on_ctrl_c(action: Callable[[], None] | None) -> Iterator[None]:
    """Calls the action on the first Ctrl-C; the second raises KeyboardInterrupt. Replaces the handler: that of
    asyncio.run would only cancel the coroutine that is waiting here."""
    if action is None or not in_main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def first(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        action()

    signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def handlers_restored() -> Iterator[None]:
    """Restores the signal handlers that a run replaces."""
    if not in_main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: not set from Python
                signal.signal(number, handler)


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
