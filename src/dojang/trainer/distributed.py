"""Distributed trainer: every call on the first rank runs on all ranks.

The loop runs on the first rank only. Each call is broadcast to the other ranks before it starts; inside a call the
trainers communicate by collectives.
"""

import asyncio
import signal
from typing import Any

import torch.distributed as dist

from dojang.core.errors import TrainingError
from dojang.protocols import Trainer
from dojang.trainer.forwarding import ForwardingTrainer
from dojang.trainer.process_group import ProcessGroup

__all__ = ["DistributedTrainer", "run_worker_rank"]


class DistributedTrainer(ForwardingTrainer):
    """The Trainer on the first rank; broadcasts its calls to the trainers on the other ranks."""

    def __init__(self, own: Trainer, ranks: ProcessGroup) -> None:
        self._own, self._ranks = own, ranks
        self._in_step = True
        """False if a call failed here, so other ranks may be inside it."""

    async def close(self) -> None:
        if self._in_step:  # otherwise the other ranks end when this process ends
            await super().close()

    async def _call(self, method: str, *arguments: Any) -> Any:
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
