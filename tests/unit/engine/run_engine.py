"""Running something with an engine from a test that is not a coroutine, and counting what it prefills."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from dojang.engine.attention import PrefillChunk
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


def prefilled_tokens(engine: TorchEngine) -> list[int]:
    """Counts the tokens that the engine prefills from now on, per chunk."""
    scheduler, counts = engine._scheduler, list[int]()
    run_prefill = scheduler._run_prefill

    def count(chunks: Sequence[PrefillChunk]) -> None:
        counts.append(sum(chunk.end - chunk.start for chunk in chunks))
        run_prefill(chunks)

    scheduler._run_prefill = count  # type: ignore[method-assign]
    return counts
