"""Batch producer: samples whole batches in the background, each with a fixed version of the weights.

    version v = steps trained and published; batch k is sampled with version k - lag (at least the first one)

So the trainer updates on batch k while batch k + 1 is sampled, and no sample is older than `lag` versions. The version
that samples a batch does not depend on the clock: a run repeats with the same tokens. With lag 0 the producer waits for
each update, as a synchronous loop does.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Self

from dojang.loop.rollout import Batch, sample_batch
from dojang.loop.run import Run
from dojang.loop.run_state import State
from dojang.loop.weight_loader import WeightLoader

__all__ = ["BatchProducer"]


class BatchProducer:
    """The Producer of loop.mode=sync and overlap."""

    def __init__(self, run: Run, state: State, *, loaded: int | None) -> None:
        """`loaded` is the version that the engine holds, if it is known."""
        self._run = run
        run.curriculum.restore(state.visits)
        self._first = state.step
        if state.ledger is not None:  # of a run that streamed: single groups are sampled again
            state = replace(state, pending=())
        self._ready = deque(Batch(groups, state.prompt_index) for groups in state.pending)
        self._allowed = max(run.lag, len(state.pending))
        """Largest staleness: batches that are pending may come from a run with a larger lag."""
        self._next = state.step + len(state.pending)
        """Number of the batch in flight, or of the next one."""
        self._prompt_index = state.prompt_index
        """Prompts drawn for all batches that are ready or were handed out."""
        self._loader = WeightLoader(run.engine.load, loaded)
        self._announced = -1
        self._waits = False
        """Whether the next batch needs a version that is not announced yet."""
        self._paused_at: float | None = None
        self._paused_s = 0.0
        """Seconds of evaluations and checkpoints, during which the engine is not waiting for the trainer."""
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def announce(self, version: int) -> None:
        self._announced = version
        if self._paused_at is not None:
            self._paused_s += time.monotonic() - self._paused_at
            self._paused_at = None
        if self._task is None:
            self._task = asyncio.create_task(self._produce(), name="rollouts")
        await self._notify()

    async def load(self, version: int) -> None:
        await self._loader.load(version)

    async def next_batch(self) -> Batch:
        await self._until(lambda: bool(self._ready))
        batch = self._ready[0]
        oldest = min((each.oldest_version for group in batch.groups for each in group.samples), default=self._announced)
        assert oldest < 0 or self._announced - oldest <= self._allowed, (
            f"a sample of version {oldest} is trained on at version {self._announced}, beyond a lag of {self._allowed}"
        )
        return batch

    def learned(self) -> None:
        self._ready.popleft()

    async def settle(self) -> None:
        """Waits until no batch is in flight: the next one needs a version that is not announced yet. Until
        the next announcement the engine is free for an evaluation."""
        if self._task is not None:
            await self._until(lambda: self._waits)
            self._paused_at = self._paused_at or time.monotonic()

    async def drain(self, version: int, limit_s: float) -> bool:
        """Batches in flight that were begun with weights older than `version` cannot be sampled again."""
        if self._task is None or self._version(self._next) >= version:
            return True
        try:
            await asyncio.wait_for(self._until(lambda: self._waits or self._version(self._next) >= version), limit_s)
        except TimeoutError:
            return False
        return True

    def snapshot(self, state: State) -> State:
        pending = tuple(batch.groups for batch in self._ready)
        return replace(
            state,
            pending=pending,
            ledger=None,
            prompt_index=self._prompt_index,
            visits=self._run.curriculum.state(),
        )

    async def saved(self, state: State) -> None:
        """A batch in flight is sampled again, with the same weights: nothing else has to be kept."""

    @property
    def settled(self) -> int:
        return self._next

    def describe(self) -> str:
        if self._task is None or self._task.done():
            return ""
        version = self._version(self._next)
        if self._waits:
            return f"rollouts of batch {self._next} wait for version {version} of the weights"
        return f"batch {self._next} is sampled with version {version} of the weights"

    async def _produce(self) -> None:
        run = self._run
        while self._next < run.steps:
            version = self._version(self._next)
            idle = await self._wait_for(version)
            await self.load(version)
            loading = self._loader.take_figures()
            started = time.monotonic()
            groups, self._prompt_index = await sample_batch(run, self._prompt_index)
            run.curriculum.observe(groups)
            figures = {
                **loading,
                **run.curriculum.metrics(),
                "timing_s/rollout": time.monotonic() - started,
                "timing_s/idle_engine": idle,
            }
            self._ready.append(Batch(tuple(groups), self._prompt_index, figures))
            self._next += 1
            await self._notify()
        self._waits = True
        await self._notify()

    def _version(self, batch: int) -> int:
        """Version that samples a batch."""
        return max(batch - self._run.lag, self._first)

    async def _wait_for(self, version: int) -> float:
        """Waits until `version` is announced; returns the seconds without those of evaluations and checkpoints."""
        started, paused_s = time.monotonic(), self._paused_s
        self._waits = self._announced < version
        if self._waits:
            await self._notify()
            async with self._changed:
                await self._changed.wait_for(lambda: self._announced >= version)
            self._waits = False
        return time.monotonic() - started - (self._paused_s - paused_s)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Waits for a condition; raises the producer's error if it failed."""
        assert self._task is not None, "announce a version first"
        ended = asyncio.ensure_future(self._wait_until(condition))
        try:
            await asyncio.wait({ended, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if not condition() and self._task.done():
                self._task.result()  # raises
                raise AssertionError("the run has no further batches")
            await ended
        finally:
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(condition)
