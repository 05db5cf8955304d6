"""The engines of two models as the loop sees them: one."""

import asyncio
from collections.abc import Callable, Sequence

from dojang.inference.engine_pool import total
from dojang.protocols import RolloutEngine
from dojang.types import Completion, Metrics, Sampling

__all__ = ["Pair"]


class Pair:
    """The first model's RolloutEngine, with another that gets its own new weights whenever the first does."""

    def __init__(
        self, first: RolloutEngine, second: RolloutEngine, newest: Callable[[], int], *, concurrent: bool = False
    ) -> None:
        """`newest` is the version of the second model that was published last: who learns less often has fewer.
        `concurrent` if the engines share no device: then both load new weights at the same time."""
        self._first, self._second, self._newest, self._concurrent = first, second, newest, concurrent

    async def generate(self, prompt: Sequence[int], n: int, sampling: Sampling) -> list[Completion]:
        return await self._first.generate(prompt, n, sampling)

    async def load(self, version: int) -> Metrics:
        if self._concurrent:
            return total(await asyncio.gather(self._first.load(version), self._second.load(self._newest())))
        return total([await self._first.load(version), await self._second.load(self._newest())])

    async def close(self) -> None:
        await asyncio.gather(self._first.close(), self._second.close())
