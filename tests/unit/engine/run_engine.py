"""Running something with an engine from a test that is not a coroutine."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from dojang.engine.torch_engine import TorchEngine

T = TypeVar("T")


def run(engine: TorchEngine, play: Callable[[TorchEngine], Awaitable[T]], limit_s: float = 60.0) -> T:
    """Run `play` with the engine, close the engine, and return the result."""

    async def whole() -> T:
        try:
            return await asyncio.wait_for(play(engine), limit_s)
        finally:
            await engine.close()

    return asyncio.run(whole())
