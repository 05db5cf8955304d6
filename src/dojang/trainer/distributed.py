"""Trainers that work as one: what the first rank is asked to do, all do.

The loop runs on the first rank alone and knows of no other. Each verb is told to the others before it begins; whatever
they have to tell each other in the course of it is the trainers' own business.
"""

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from dojang.core.errors import TrainingError
from dojang.protocols import Trainer
from dojang.trainer.process_group import Ranks
from dojang.types import Group, Metrics, Sample

__all__ = ["Team", "follow"]


class Team:
    """The Trainer of the first rank, and those of the others behind it."""

    def __init__(self, own: Trainer, ranks: Ranks) -> None:
        self._own, self._ranks = own, ranks
        self._together = True
        """Whether nothing has gone wrong here while others went on."""

    async def forward_backward(self, groups: Sequence[Group]) -> Metrics:
        metrics: Metrics = await self._all("forward_backward", groups)
        return metrics

    async def optim_step(self) -> Metrics:
        metrics: Metrics = await self._all("optim_step")
        return metrics

    async def skip_steps(self, count: int) -> None:
        await self._all("skip_steps", count)

    async def score(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        found: list[tuple[float, ...]] = await self._all("score", samples)
        return found

    async def appraise(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        found: list[tuple[float, ...]] = await self._all("appraise", samples)
        return found

    async def ref_logprobs(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        found: list[tuple[float, ...]] = await self._all("ref_logprobs", samples)
        return found

    async def teacher_logprobs(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        found: list[tuple[float, ...]] = await self._all("teacher_logprobs", samples)
        return found

    async def publish(self) -> int:
        version: int = await self._all("publish")
        return version

    async def save(self, path: Path) -> None:
        await self._all("save", path)

    async def restore(self, path: Path) -> None:
        await self._all("restore", path)

    async def close(self) -> None:
        if self._together:  # or else the end of this process is what ends the others
            await self._all("close")

    async def _all(self, verb: str, *arguments: Any) -> Any:
        self._together = False
        try:
            dist.broadcast_object_list([(verb, arguments)], src=0, group=self._ranks.orders)
            found = await getattr(self._own, verb)(*arguments)
        except RuntimeError as error:
            if isinstance(error, dist.DistError) or "gloo" in str(error) or "onnection" in str(error):
                raise TrainingError("another process failed; it says why itself") from error
            raise
        self._together = True
        return found


def follow(trainer: Trainer, ranks: Ranks) -> None:
    """Do as the first rank does, until it needs nobody any more. When to stop is for that one to say."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    verb = ""
    while verb != "close":
        heard: list[Any] = [None]
        try:
            dist.broadcast_object_list(heard, src=0, group=ranks.orders)
        except RuntimeError as error:  # of the connection
            raise TrainingError("the first process is gone; it says why itself") from error
        verb, arguments = heard[0]
        asyncio.run(getattr(trainer, verb)(*arguments))
