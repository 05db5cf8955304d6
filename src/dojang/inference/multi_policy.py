"""Engines of two policies behind the interface of one."""

import asyncio
from collections.abc import Sequence

from dojang.core.sum_metrics import sum_metrics
from dojang.protocols import RolloutEngine
from dojang.types import Completion, Metrics, Sampling

__all__ = ["MultiPolicyEngine"]


class MultiPolicyEngine:
    """RolloutEngine of the first policy. Loading a version also loads that version of the second policy's weights."""

    def __init__(self, first: RolloutEngine, second: RolloutEngine, *, concurrent: bool = False) -> None:
        """`concurrent`: the engines share no device, so both load weights at once."""
        self._first, self._second, self._concurrent = first, second, concurrent

    async def generate(self, prompt: Sequence[int], n: int, sampling: Sampling) -> list[Completion]:
        return await self._first.generate(prompt, n, sampling)

    async def load(self, version: int) -> Metrics:
        if self._concurrent:
            return sum_metrics(await asyncio.gather(self._first.load(version), self._second.load(version)))
        return sum_metrics([await self._first.load(version), await self._second.load(version)])

    async def close(self) -> None:
        await asyncio.gather(self._first.close(), self._second.close())
