"""The training loop.

    prompts ──► rollout ──► reward ──► advantages ──► update ──► publish weights ──┐
       ▲                                                                           │
       └───────────────────────────────────────────────────────────────────────────┘

Batches come from a producer, which samples the next ones while the trainer works if `lag` is above 0: whole batches
(batch_producer.py), or groups as they finish (stream_producer.py). `State` holds everything of a run besides weights
and optimizer. A run resumed from a checkpoint draws the same prompts and the same random numbers; unless it streams, it
samples the same tokens as a run that was never interrupted.
"""

import asyncio
import logging
import time
from dataclasses import replace

from dojang.core.errors import Interrupted
from dojang.loop.advantages import compute_advantages
from dojang.loop.batch_producer import BatchProducer
from dojang.loop.endings import count_endings
from dojang.loop.kl_in_reward import penalise
from dojang.loop.metrics import StepTimer, advantage_metrics, rollout_metrics, staleness_metrics
from dojang.loop.producer import Producer
from dojang.loop.rollout import Batch
from dojang.loop.run import Run
from dojang.loop.run_state import State, write_state
from dojang.loop.scheduled_eval import evaluate_due, is_due, is_eval_due
from dojang.loop.stoppable import Stopped, or_stopped
from dojang.loop.stream_producer import StreamProducer
from dojang.loop.timeline import Timeline
from dojang.loop.update import select_groups, update
from dojang.loop.watchdog import Watchdog, activity

__all__ = ["train", "train_step"]

logger = logging.getLogger(__name__)

_DRAIN_S = 120.0
"""Seconds that a run told to stop waits for rollouts that only the weights before the last update can repeat."""


async def train(run: Run, state: State, stop: asyncio.Event) -> State:
    """Run the loop to its last step. When `stop` is set, save a checkpoint and raise Interrupted."""
    saved = state if run.directory.last_checkpoint() is not None else None
    if saved is not None:
        link_checkpoints(run, state)  # a crash may have come after the checkpoint and before its links
    synced = saved is None and run.weights_synced
    make = StreamProducer if run.workers else BatchProducer
    producer: Producer
    async with (
        Timeline(run.directory.timeline, state.step, streams=bool(run.workers)) as timeline,
        make(run, state, loaded=state.step if synced else None) as producer,
        Watchdog(producer, run.directory.stall, run.stall_s),
    ):
        if not synced:
            await run.trainer.publish(state.step)
            await producer.load(state.step)
        for parity_check in run.parity_checks:
            await parity_check.check()
        while True:
            started = time.monotonic()
            try:
                state = await _evaluate(run, state, producer, stop)
                due = is_due(run, state, run.save_every)
                if state != saved and (due or run.ranking.is_among_best(state, run.directory)):
                    await or_stopped(stop, producer.settle())
                    await save_checkpoint(run, state, producer)
                    saved = state
                timeline.flush(state.step)
                if state.step >= run.steps:
                    return state
                timer = StepTimer()
                await producer.announce(state.step)
                with timer("wait"):
                    batch = await or_stopped(stop, producer.next_batch())
                state = await train_step(run, state, batch, timer, stop)
                producer.learned()
                timeline.flush(state.step)
            except Stopped:
                if state != saved:
                    await _drain(state, producer)
                    await save_checkpoint(run, state, producer)
                raise Interrupted(f"stopped after step {state.step} of {run.steps}; everything is saved") from None
            state = replace(state, seconds=state.seconds + time.monotonic() - started)


async def _evaluate(run: Run, state: State, producer: Producer, stop: asyncio.Event) -> State:
    """Runs the evaluations that are due, with the weights of this step."""
    if not is_eval_due(run, state):
        return state
    await or_stopped(stop, producer.settle())
    await producer.load(state.step)
    return await evaluate_due(run, state, stop)


async def _drain(state: State, producer: Producer) -> None:
    if not await producer.drain(state.step, _DRAIN_S):
        logger.warning(
            "rollouts in flight did not end within %g s; they are sampled again with newer weights", _DRAIN_S
        )


async def train_step(run: Run, state: State, batch: Batch, timer: StepTimer, stop: asyncio.Event) -> State:
    """Advantages and update of one batch. Nothing before the update changes the run, so until then it can be
    abandoned."""
    rewarded, penalty = await penalise(run.algorithm, run.trainer, batch.groups)
    groups = compute_advantages(run.algorithm, rewarded, run.credit)
    run.tracker.groups(state.step + 1, "train", groups)
    endings = count_endings(groups, run.answer_end)
    run.health.check(groups, endings)
    trained, distilled = select_groups(run, groups), dict[str, float]()
    if run.distiller is not None:
        with timer("teacher"):
            trained, figures = await or_stopped(stop, run.distiller.advantages(trained))
        distilled = {**figures, **(advantage_metrics(trained) if trained else {})}
    with timer("update"):
        updated = {**distilled, **await update(run, trained)}
    with timer("publish"):
        await run.trainer.publish(state.step + 1)
    if values := await run.trainer.take_token_values():
        run.tracker.token_values(state.step + 1, values)
    figures = {
        **rollout_metrics(groups),
        **endings.metrics(),
        **staleness_metrics(groups, state.step),
        **penalty,
        **updated,
        **batch.figures,
        **timer.step_metrics(groups, batch.figures),
    }
    run.tracker.metrics(state.step + 1, figures)
    if updated:
        run.ranking.check(figures, run.directory)
    return replace(state, step=state.step + 1, prompt_index=batch.end, figures=figures, pending=())


async def save_checkpoint(run: Run, state: State, producer: Producer) -> None:
    """Saves a checkpoint of this step, with the batches that are ready, and deletes those that are neither among the
    best nor the last."""
    whole = producer.snapshot(state)
    with activity("checkpoint"), run.directory.new_checkpoint(state.step) as path:
        await run.trainer.save(path)
        write_state(path, whole, run.health)
    link_checkpoints(run, state)
    run.directory.prune_checkpoints(run.ranking.best_steps(run.directory))
    await producer.saved(whole)


def link_checkpoints(run: Run, state: State) -> None:
    """Points the link `last` to the checkpoint of this state, and `best` to the best one."""
    run.directory.point("last", state.step)
    for step in run.ranking.best_steps(run.directory)[:1]:
        run.directory.point("best", step)
