"""Stream producer: groups are sampled one by one, and weights change between two tokens.

A prompt starts as soon as the lag allows it (ledger.py), on any of the run's rollout workers. Rollouts in flight go on
with new weights when these are published; every token knows the version that sampled it. Which groups form a batch does
not depend on the clock, their tokens do. A kill loses no judged group: each is in the journal before it counts.
"""

import logging
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from dojang.core.sum_metrics import sum_metrics
from dojang.loop.health_check import has_signal
from dojang.loop.journal import Journal
from dojang.loop.ledger import Ledger
from dojang.loop.rollout import Batch
from dojang.loop.rollout_queue import TRAINER, RolloutQueue
from dojang.loop.run import Run
from dojang.loop.run_state import State
from dojang.loop.timeline import current_timeline
from dojang.loop.weight_loader import WeightLoader
from dojang.types import Group, Metrics

__all__ = ["StreamProducer"]

logger = logging.getLogger(__name__)


class StreamProducer:
    """The Producer of loop.mode=stream."""

    def __init__(self, run: Run, state: State, *, loaded: int | None) -> None:
        """`loaded` is the version that the engine holds, if it is known."""
        self._run = run
        run.curriculum.restore(state.visits)
        self._loader = WeightLoader(self._publish, loaded)
        self._started = False
        self._idle_s = 0.0
        """Idle seconds of the queue, up to the batch before."""
        self._void: dict[int, Group] = {}
        """Groups without a signal that were replaced by others, for metrics and records."""
        self._rounds = run.algorithm.max_resample_rounds if run.distiller is None else 0
        timeline = current_timeline()
        self.queue = RolloutQueue(
            _restore(run, state, self._rounds),
            Journal(run.directory.journal),
            has_signal=self._has_signal,
            lease_s=run.worker_timeout_s,
            on_holders=lambda workers: None if timeline is None else timeline.hold(map(_timeline_name, workers)),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.queue.close()
        for workers in self._run.workers:
            await workers.close()

    async def load(self, version: int) -> None:
        await self._loader.load(version)

    async def _publish(self, version: int) -> Metrics:
        return sum_metrics([await workers.publish(version) for workers in self._run.workers])

    async def announce(self, version: int) -> None:
        await self.load(version)
        self.queue.publish(version)
        if not self._started:
            self._started = True
            found = self.queue.recover(self._run.problem)
            if any(found.values()):
                logger.info("journal: %(taken)d groups taken, %(dropped)d are sampled again", found)
            for workers in self._run.workers:
                await workers.start(self.queue)

    async def next_batch(self) -> Batch:
        groups = await self.queue.next_batch()
        end = self.queue.ledger.batch_end
        void = [group for index, group in self._void.items() if index < end]
        idle_s, self._idle_s = self.queue.idle_s - self._idle_s, self.queue.idle_s
        figures = {
            **self._loader.take_figures(),
            **self.queue.metrics(),
            **self._run.curriculum.metrics(),
            "timing_s/idle_engine": idle_s,
        }
        return Batch(tuple(sorted([*groups, *void], key=lambda group: group.prompt_index)), end, figures)

    def learned(self) -> None:
        ledger = self.queue.ledger
        self._void = {index: group for index, group in self._void.items() if index >= ledger.batch_end}
        self.queue.learn(ledger.step)

    async def settle(self) -> None:
        """Rollouts go on beside evaluations and checkpoints."""

    async def drain(self, version: int, limit_s: float) -> bool:
        return True  # rollouts in flight are drawn again, with the weights that are newest then

    def snapshot(self, state: State) -> State:
        ledger = self.queue.ledger
        saved = ledger.snapshot()
        return replace(
            state,
            pending=(tuple(ledger.ready_groups()),),
            ledger=saved,
            prompt_index=saved["first"],
            visits=self._run.curriculum.state(),
        )

    async def saved(self, state: State) -> None:
        assert state.ledger is not None
        await self.queue.trim_journal(state.ledger)

    @property
    def settled(self) -> int:
        return self.queue.delivered

    def describe(self) -> str:
        if not self._started:
            return ""
        return "; ".join(filter(None, [self.queue.describe(), *(workers.describe() for workers in self._run.workers)]))

    def _has_signal(self, group: Group) -> bool:
        found = has_signal(group)
        self._run.curriculum.observe([group])
        if self._rounds and not found:
            self._void[group.prompt_index] = group
        return found


def _timeline_name(worker: str) -> str:
    return "worker-local" if worker == TRAINER else f"worker-{worker}"


def _restore(run: Run, state: State, rounds: int) -> Ledger:
    """Ledger of a checkpoint; also of one that was saved in another mode."""
    settings: dict[str, Any] = {
        "prompts_per_step": run.prompts_per_step,
        "lag": run.lag,
        "resample_rounds": rounds,
        "steps": run.steps,
        "skips": lambda index: run.curriculum.skips(index, run.problem(index)),
    }
    groups = [group for batch in state.pending for group in batch]
    if state.ledger is not None:
        return Ledger.restore(state.ledger, groups, **settings)
    first = min((group.prompt_index for group in groups), default=state.prompt_index)
    skipped = {*range(first, state.prompt_index)} - {group.prompt_index for group in groups}
    void = [group.prompt_index for group in groups if rounds and not has_signal(group)]
    ready = [group for group in groups if group.prompt_index not in void]
    learned = state.step * run.prompts_per_step
    return Ledger.restore(
        {
            "step": state.step,
            "version": state.step,
            "first": first,
            "next": state.prompt_index,
            "ready": [group.prompt_index for group in ready],
            "void": void,
            "skipped": sorted(skipped),
            "returned": [],
            "learned": learned,
            "void_reasons": {"no signal": len(void)} if void else {},
            "refused": 0,
            "largest_staleness": 0,
        },
        ready,
        **settings,
    )
