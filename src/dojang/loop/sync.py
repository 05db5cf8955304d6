"""The synchronous, on-policy loop.

    pose ──► attempt ──► judge ──► credit ──► learn ──► publish ──┐
      ▲                                                           │
      └───────────────────────────────────────────────────────────┘

Everything a run is made of besides the weights is in `State`: a run resumed from a checkpoint continues with the
same problems, the same random numbers and so the same tokens as one that was never interrupted.
"""

import asyncio
import math
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeVar

from dojang.core.errors import Interrupted
from dojang.core.run_dir import RunDir
from dojang.loop.checkpoint_ranking import Best
from dojang.loop.evaluate import Benchmark, evaluate, evaluate_benchmark
from dojang.loop.health_check import HealthGate
from dojang.loop.kl_in_reward import penalise
from dojang.loop.metrics import Clock, advantage_metrics, rollout_metrics
from dojang.loop.parity_check import Agreement
from dojang.loop.prompt_sampler import pose
from dojang.loop.run_state import State, write_state
from dojang.loop.truncation_mask import mask_truncated, warn_if_all_are_masked
from dojang.protocols import Algorithm, Distiller, RolloutEngine, Tracker, Trainer, Workflow
from dojang.types import Group, Metrics, Problem, Sample

__all__ = ["Run", "train"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything the loop works with, wired by build/assemble.py."""

    seed: int
    steps: int
    prompts: int
    updates: int
    eval_every: int
    save_every: int
    problems: Sequence[Problem]
    held_out: Sequence[Problem]
    workflow: Workflow
    exam: Workflow
    engine: RolloutEngine
    algorithm: Algorithm
    trainer: Trainer
    tracker: Tracker
    gate: HealthGate
    directory: RunDir
    epochs: int = 1
    """Passes over each batch, each of `updates` optimizer steps."""
    mask_truncated: bool = False
    """Whether completions cut off at max_tokens are masked out of the loss."""
    warned: set[str] = field(default_factory=set)
    """Warnings that this run has logged."""
    primed: bool = False
    """Whether the engine was made with the weights the trainer begins with: they need not be published."""
    stale: int = 0
    """How many steps old what is learned from is: the first so many only attempt."""
    critic: bool = False
    """Whether tokens are credited by the trainer's critic, and not samples beside each other."""
    distiller: Distiller | None = None
    """Adds the teacher's signal to the advantages of tokens (on-policy distillation)."""
    eval_samples: Sequence[Sample] = ()
    """Held-out completions on which evaluations measure the loss (SFT)."""
    best: Best = field(default_factory=Best)
    """By what checkpoints are kept."""
    benchmarks: Sequence[Benchmark] = ()
    """Further evaluation sets; they are recorded, and count into nothing else."""
    agreements: Sequence[Agreement] = ()
    """Checked before anything else: one for each model."""

    def problem(self, ordinal: int) -> Problem:
        """The one that was, or will be, posed then."""
        ((_, problem),) = pose(self.problems, self.seed, ordinal, 1)
        return problem


async def train(run: Run, state: State, stop: asyncio.Event) -> State:
    """Run the loop to its last step. When `stop` is set, save and raise Interrupted."""
    saved = state if run.directory.last_checkpoint() is not None else None
    if saved is not None:
        point(run, state)  # a crash may have come between the checkpoint and its links
    if saved is not None or not run.primed:
        await publish(run)
    for agreement in run.agreements:
        await agreement.check()
    while True:
        started = time.monotonic()
        try:
            state = await examine(run, state, stop)
            due = _due(run, state, run.save_every)
            if state != saved and (due or run.best.admits(state, run.directory)):
                await save(run, state)
                saved = state
            if state.step >= run.steps:
                return state
            problems = pose(run.problems, run.seed, state.ordinal, run.prompts)
            state = await take_step(run, state, problems, stop)
        except _Stopped:
            if state != saved:
                await save(run, state)
            raise Interrupted(f"stopped after step {state.step} of {run.steps}; everything is saved") from None
        state = replace(state, seconds=state.seconds + time.monotonic() - started)


async def take_step(run: Run, state: State, problems: Sequence[tuple[int, Problem]], stop: asyncio.Event) -> State:
    """One turn of the loop. Nothing before `learn` changes the run, so it can be abandoned and repeated."""
    clock = Clock()
    with clock("attempt"):  # and judge: each group is graded while others are still being generated
        drawn, penalty = await penalise(run.algorithm, run.trainer, await _unless(stop, attempt(run, problems)))
        groups = credit(run.algorithm, drawn)
        for _ in range(run.algorithm.max_resample_rounds if run.distiller is None else 0):
            if (missing := run.prompts - sum(group.has_advantage for group in groups)) <= 0:
                break
            more = pose(run.problems, run.seed, state.ordinal + len(problems), missing)
            problems = [*problems, *more]
            groups = credit(run.algorithm, [*groups, *await _unless(stop, attempt(run, more))])
    run.tracker.groups(state.step + 1, "train", groups)
    run.gate.check(groups)
    pending = (*state.pending, tuple(groups))
    learned: Metrics = {}
    sent: Metrics = {}
    while len(pending) > run.stale:  # more than one only if a resumed run is to be less stale
        batch, taught = _batch(run, pending[0]), dict[str, float]()
        if run.distiller is not None:
            asked = run.distiller.advantages(batch)
            with clock("teacher"):  # a batch after the first cannot be abandoned: weights have changed
                batch, figures = await (asked if learned else _unless(stop, asked))
            taught = {**figures, **(advantage_metrics(batch) if batch else {})}
        with clock("learn"):
            learned = {**taught, **await learn(run, batch)}
        with clock("publish"):
            sent = await publish(run)
        pending = pending[1:]
    figures = {**rollout_metrics(groups), **penalty, **learned, **sent, **clock.step_metrics(groups)}
    run.tracker.metrics(state.step + 1, figures)
    if learned:
        run.best.check(figures, run.directory)
    ordinal = state.ordinal + len(problems)
    return replace(state, step=state.step + 1, ordinal=ordinal, figures=figures, pending=pending)


async def attempt(run: Run, problems: Sequence[tuple[int, Problem]]) -> list[Group]:
    """A graded group per problem."""
    return await asyncio.gather(*(run.workflow.run(problem, ordinal) for ordinal, problem in problems))


def credit(algorithm: Algorithm, groups: Sequence[Group]) -> list[Group]:
    """The same groups with every sample's advantage filled in."""
    return [
        replace(
            group,
            samples=tuple(
                replace(sample, advantage=advantage)
                for sample, advantage in zip(group.samples, advantages, strict=True)
            ),
        )
        for group, advantages in zip(groups, algorithm.advantages(groups), strict=True)
    ]


def teaches(run: Run, group: Group) -> bool:
    """Whether a group has a gradient: an advantage other than 0, or a loss with terms that need none."""
    has_tokens = any(any(sample.mask) for sample in group.samples)
    return has_tokens and (run.algorithm.trains_zero_advantage or group.has_advantage)


def _batch(run: Run, groups: Sequence[Group]) -> Sequence[Group]:
    """The groups to train on. Dynamic sampling (`max_resample_rounds`) filters those with zero advantages, by
    definition; with a
    teacher, which has a signal for all, it is off."""
    filters = run.algorithm.max_resample_rounds and run.distiller is None
    return [group for group in groups if group.has_advantage] if filters else groups


async def learn(run: Run, groups: Sequence[Group]) -> Metrics:
    """One optimizer step per part of the batch and epoch. Steps without a group that has a gradient are skipped."""
    if run.mask_truncated:
        groups = mask_truncated(groups)
        warn_if_all_are_masked(groups, run.warned)
    others = [group for group in groups if not teaches(run, group)]
    groups = [group for group in groups if teaches(run, group)]
    if run.algorithm.needs_old and run.updates * run.epochs > 1:  # with one update, they are those of that update
        groups = await recall(run, groups)
    traced: Metrics = {}
    if run.critic and groups:
        groups = run.algorithm.trace(await appraise(run, groups))
        traced = advantage_metrics(groups)
    metrics: dict[str, list[float]] = {}
    steps = min(run.updates, len(groups))
    parts = list(zip(_split(groups, steps), _split(others, steps), strict=True))
    for part, rest in parts * run.epochs:
        figures = {**await run.trainer.forward_backward([*part, *rest]), **await run.trainer.optim_step()}
        for name, value in figures.items():
            metrics.setdefault(name, []).append(value)
    if steps < run.updates:
        await run.trainer.skip_steps((run.updates - steps) * run.epochs)
    return {**traced, **{name: _combined(name, values) for name, values in metrics.items()}}


async def recall(run: Run, groups: Sequence[Group]) -> list[Group]:
    """The same groups with what the trainer thinks of every token before it learns from any."""
    thoughts = iter(await run.trainer.score([sample for group in groups for sample in group.samples]))
    return [
        replace(group, samples=tuple(replace(sample, old_logprobs=next(thoughts)) for sample in group.samples))
        for group in groups
    ]


async def appraise(run: Run, groups: Sequence[Group]) -> list[Group]:
    """The same groups with what the critic expects before every token, before it learns from any."""
    values = iter(await run.trainer.appraise([sample for group in groups for sample in group.samples]))
    return [
        replace(group, samples=tuple(replace(sample, values=next(values)) for sample in group.samples))
        for group in groups
    ]


def _combined(name: str, values: Sequence[float]) -> float:
    return max(values) if name.endswith("/max") else sum(values) / len(values)


async def publish(run: Run) -> Metrics:
    """From here on the engine samples from the new policy."""
    return await run.engine.load(await run.trainer.publish()) or {}


async def examine(run: Run, state: State, stop: asyncio.Event) -> State:
    """Evaluate on what is due: the held-out problems, and benchmarks."""
    before = state
    if _due(run, state, run.eval_every) and state.step not in state.scores:
        state = await examine_held_out(run, state, stop)
    for benchmark in run.benchmarks:
        if _due(run, state, benchmark.every) and state.step not in state.benchmarks.get(benchmark.name, {}):
            state = await examine_benchmark(run, state, benchmark, stop)
    if state != before:
        run.best.check(state.figures, run.directory)
    return state


async def examine_held_out(run: Run, state: State, stop: asyncio.Event) -> State:
    """Evaluate on the held-out problems."""
    clock = Clock()
    with clock("eval"):
        found = await _unless(stop, evaluate(run.exam, run.held_out))
    run.tracker.groups(state.step, "test", found.groups)
    figures = {**found.metrics, **await eval_loss(run), **clock.spent}
    run.tracker.metrics(state.step, figures)
    scores = {**state.scores, state.step: found.score}
    return replace(state, scores=scores, figures={**state.figures, **figures})


async def eval_loss(run: Run) -> Metrics:
    """Mean cross-entropy of the held-out completions, per token, if there are any (SFT)."""
    if not run.eval_samples:
        return {}
    scored = await run.trainer.score(run.eval_samples)
    tokens = sum(sample.response_length for sample in run.eval_samples)
    return {"val/loss": -math.fsum(each for row in scored for each in row) / tokens}


async def examine_benchmark(run: Run, state: State, benchmark: Benchmark, stop: asyncio.Event) -> State:
    """Evaluate on a benchmark."""
    clock, name = Clock(), benchmark.name
    with clock(f"eval/{name}"):
        found = await _unless(stop, evaluate_benchmark(benchmark))
    run.tracker.groups(state.step, f"test-{name}", found.groups)
    figures = {**found.metrics, **clock.spent}
    run.tracker.metrics(state.step, figures)
    scores = {**state.benchmarks.get(name, {}), state.step: found.score}
    return replace(state, benchmarks={**state.benchmarks, name: scores}, figures={**state.figures, **figures})


async def save(run: Run, state: State) -> None:
    """A checkpoint of this step; those that are neither among the best nor the last go."""
    with run.directory.new_checkpoint(state.step) as path:
        await run.trainer.save(path)
        write_state(path, state, run.gate)
    point(run, state)
    run.directory.prune_checkpoints(run.best.kept(run.directory))


def point(run: Run, state: State) -> None:
    """Let `last` lead to the checkpoint of this state, and `best` to the best there is."""
    run.directory.point("last", state.step)
    for step in run.best.kept(run.directory)[:1]:
        run.directory.point("best", step)


class _Stopped(Exception):
    """`stop` was set while work that can be repeated was under way."""


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, or _Stopped as soon as `stop` is set."""
    task, alarm = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, alarm}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise _Stopped
    finally:
        for each in (task, alarm):
            each.cancel()
        await asyncio.gather(task, alarm, return_exceptions=True)


def _due(run: Run, state: State, every: int) -> bool:
    return state.step % every == 0 or state.step >= run.steps


def _split(groups: Sequence[Group], parts: int) -> list[Sequence[Group]]:
    """Near-equal parts, in order; empty ones where there are fewer groups than parts."""
    cuts = [len(groups) * part // max(1, parts) for part in range(parts + 1)]
    return [groups[start:end] for start, end in pairwise(cuts)]
