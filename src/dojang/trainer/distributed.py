"""Distributed trainer: every call on the first rank runs on all ranks.

The loop runs on the first rank only. Each call is broadcast to the other ranks before it starts; inside a call the
trainers communicate by collectives.
"""

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from dojang.core.errors import TrainingError
from dojang.protocols import Trainer
from dojang.trainer.process_group import ProcessGroup
from dojang.types import Group, Metrics, Sample

__all__ = ["DistributedTrainer", "run_worker_rank"]


class DistributedTrainer:
    """The Trainer on the first rank; broadcasts its calls to the trainers on the other ranks."""

    def __init__(self, own: Trainer, ranks: ProcessGroup) -> None:
        self._own, self._ranks = own, ranks
        self._in_step = True
        """False if a call failed here, so other ranks may be inside it."""

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
        if self._in_step:  # otherwise the other ranks end when this process ends
            await self._all("close")

    async def _all(self, method: str, *arguments: Any) -> Any:
        self._in_step = False
        try:
            dist.broadcast_object_list([(method, arguments)], src=0, group=self._ranks.control_group)
            found = await getattr(self._own, method)(*arguments)
        except RuntimeError as error:
            if isinstance(error, dist.DistError) or "gloo" in str(error) or "onnection" in str(error):
                raise TrainingError("another process failed; see its log for the reason") from error
            raise
        self._in_step = True
        return found


def run_worker_rank(trainer: Trainer, ranks: ProcessGroup) -> None:
    """Runs the calls that the first rank broadcasts, until `close`. Ignores signals: the first rank handles them."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    method = ""
    while method != "close":
        received: list[Any] = [None]
        try:
            dist.broadcast_object_list(received, src=0, group=ranks.control_group)
        except RuntimeError as error:  # lost connection
            raise TrainingError("the first process is gone; see its log for the reason") from error
        method, arguments = received[0]
        asyncio.run(getattr(trainer, method)(*arguments))
