"""Work that ends early when the run is told to stop."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["Stopped", "or_stopped"]

T = TypeVar("T")


class Stopped(Exception):
    """`stop` was set during work that can be repeated."""


async def or_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of `work`; cancels it and raises Stopped as soon as `stop` is set, or was set before."""
    if stop.is_set():
        work.close()
        raise Stopped
    task, alarm = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, alarm}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Stopped
    finally:
        for each in (task, alarm):
            each.cancel()
        await asyncio.gather(task, alarm, return_exceptions=True)
