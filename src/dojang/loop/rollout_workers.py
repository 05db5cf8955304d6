"""Rollout workers of a streaming run: they lease prompts from the queue and deliver judged groups."""

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from dojang.loop.rollout_queue import TRAINER, Lease, RolloutQueue
from dojang.loop.watchdog import activity
from dojang.protocols import RolloutEngine, Workflow
from dojang.types import Metrics, Problem

__all__ = ["LocalWorkers", "RolloutWorkers"]


class RolloutWorkers(Protocol):
    """Rollout workers, in this process or elsewhere."""

    async def start(self, queue: RolloutQueue) -> None:
        """Begin to lease prompts."""

    async def publish(self, version: int) -> Metrics:
        """Make a version of the weights available; prompts that need it are leased afterwards. Returns metrics."""

    def describe(self) -> str:
        """Say which workers have not started, and why; empty if none. May be called from any thread."""

    async def close(self) -> None:
        """End all rollouts and processes."""


class LocalWorkers:
    """Rollouts in the trainer's process. New weights are loaded between two tokens, while rollouts go on."""

    def __init__(
        self,
        workflow: Workflow,
        engine: RolloutEngine,
        problem: Callable[[int], Problem],
        *,
        idle: bool = False,
    ) -> None:
        """`problem` maps a prompt index to its problem. `idle`: others sample, the engine just gets weights."""
        self._workflow, self._engine, self._problem, self._idle = workflow, engine, problem, idle
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, queue: RolloutQueue) -> None:
        if not self._idle:
            self._spawn(self._serve(queue))

    async def publish(self, version: int) -> Metrics:
        return await self._engine.load(version) or {}

    def describe(self) -> str:
        return ""

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, queue: RolloutQueue) -> None:
        while True:
            if (lease := await queue.lease(TRAINER, math.inf, expires=False)) is None:
                return
            self._spawn(self._run(queue, lease))

    async def _run(self, queue: RolloutQueue, lease: Lease) -> None:
        index = lease.prompt_index
        try:
            with activity("rollout", index):
                group = await self._workflow.run(self._problem(index), index)
            await queue.deliver(TRAINER, index, lease.attempt, group)
        except Exception as error:
            queue.fail(error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # an error of the queue, which the trainer raises: asyncio need not report it, too
