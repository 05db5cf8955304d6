"""The synchronous, on-policy training loop.

    prompts ──► rollout ──► reward ──► advantages ──► update ──► sync weights ──┐
       ▲                                                                        │
       └────────────────────────────────────────────────────────────────────────┘

`State` holds everything of a run besides weights and optimizer. A run resumed from a checkpoint draws the same prompts
and the same random numbers, so it samples the same tokens as a run that was never interrupted.
"""

import asyncio
import math
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Protocol, TypeVar, cast

from dojang.core.errors import Interrupted
from dojang.core.run_dir import RunDir
from dojang.loop.checkpoint_ranking import CheckpointRanking
from dojang.loop.evaluate import Benchmark, evaluate, evaluate_benchmark
from dojang.loop.health_check import HealthCheck
from dojang.loop.kl_in_reward import penalise
from dojang.loop.metrics import StepTimer, advantage_metrics, rollout_metrics
from dojang.loop.parity_check import ParityCheck
from dojang.loop.prompt_sampler import draw_prompts
from dojang.loop.run_state import State, write_state
from dojang.loop.truncation_mask import mask_truncated, warn_if_all_are_masked
from dojang.protocols import Algorithm, RolloutEngine, Tracker, Trainer, TrainsCritic, Workflow
from dojang.types import Group, Metrics, Problem, Sample, float_array

__all__ = ["Run", "compute_advantages", "rollout", "train"]

T = TypeVar("T")
Prompts = Sequence[tuple[int, Problem]]
"""Problems with their prompt indices, as draw_prompts returns them."""


class Distiller(Protocol):
    """Adds a teacher's per-token signal to advantages (on-policy distillation)."""

    async def advantages(self, groups: Sequence[Group]) -> tuple[list[Group], Metrics]:
        """Groups with per-token advantages, and metrics. Drops samples that the teacher could not score."""

    async def close(self) -> None:
        """Close connections to the teacher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The objects and settings of the loop, wired by build/assemble.py."""

    seed: int
    steps: int
    prompts_per_step: int
    minibatches: int
    eval_every: int
    save_every: int
    problems: Sequence[Problem]
    held_out: Sequence[Problem]
    workflow: Workflow
    eval_workflow: Workflow
    engine: RolloutEngine
    algorithm: Algorithm
    trainer: Trainer
    tracker: Tracker
    health: HealthCheck
    directory: RunDir
    ppo_epochs: int = 1
    """Passes over each batch of rollouts, with `minibatches` optimizer steps each."""
    mask_truncated: bool = False
    """Mask completions truncated at max_tokens out of the loss."""
    warned: set[str] = field(default_factory=set)
    """Warnings already logged in this run."""
    weights_synced: bool = False
    """Whether the engine already holds the initial weights, so the first weight sync can be skipped."""
    lag: int = 0
    """Steps between a rollout and its update; the first `lag` steps only roll out."""
    critic: bool = False
    """Whether advantages come from the critic (GAE per token), not from comparing samples."""
    distiller: Distiller | None = None
    """Adds the teacher's signal to token advantages (on-policy distillation)."""
    eval_samples: Sequence[Sample] = ()
    """Held-out completions for the evaluation loss (SFT)."""
    ranking: CheckpointRanking = field(default_factory=CheckpointRanking)
    """Ranks checkpoints; the best are kept."""
    benchmarks: Sequence[Benchmark] = ()
    """Further evaluation sets, recorded only: they do not count in val/accuracy."""
    parity_checks: Sequence[ParityCheck] = ()
    """Log-prob comparisons of engine and trainer, one per model, run before the first step."""

    def problem(self, prompt_index: int) -> Problem:
        """Returns the problem drawn at this index of the run."""
        ((_, problem),) = draw_prompts(self.problems, self.seed, prompt_index, 1)
        return problem


async def train(run: Run, state: State, stop: asyncio.Event) -> State:
    """Run the loop to its last step. When `stop` is set, save a checkpoint and raise Interrupted."""
    saved = state if run.directory.last_checkpoint() is not None else None
    if saved is not None:
        link_checkpoints(run, state)  # a crash may have come after the checkpoint and before its links
    if saved is not None or not run.weights_synced:
        await sync_weights(run)
    for parity_check in run.parity_checks:
        await parity_check.check()
    while True:
        started = time.monotonic()
        try:
            state = await evaluate_due(run, state, stop)
            due = _due(run, state, run.save_every)
            if state != saved and (due or run.ranking.is_among_best(state, run.directory)):
                await save_checkpoint(run, state)
                saved = state
            if state.step >= run.steps:
                return state
            prompts = draw_prompts(run.problems, run.seed, state.prompt_index, run.prompts_per_step)
            state = await train_step(run, state, prompts, stop)
        except _Stopped:
            if state != saved:
                await save_checkpoint(run, state)
            raise Interrupted(f"stopped after step {state.step} of {run.steps}; everything is saved") from None
        state = replace(state, seconds=state.seconds + time.monotonic() - started)


async def train_step(run: Run, state: State, prompts: Prompts, stop: asyncio.Event) -> State:
    """One step of the loop. Nothing before the update changes the run, so until then it can be abandoned."""
    timer = StepTimer()
    with timer("rollout"):
        groups, prompts, penalty = await rollout_with_advantages(run, state, prompts, stop)
    run.tracker.groups(state.step + 1, "train", groups)
    run.health.check(groups)
    pending = (*state.pending, tuple(groups))
    updated: Metrics = {}
    synced: Metrics = {}
    while len(pending) > run.lag:  # several only if a resumed run has a smaller lag
        batch, distilled = _batch(run, pending[0]), dict[str, float]()
        if run.distiller is not None:
            scoring = run.distiller.advantages(batch)
            with timer("teacher"):  # from the second batch on the weights have changed: finish the step
                batch, figures = await (scoring if updated else _or_stopped(stop, scoring))
            distilled = {**figures, **(advantage_metrics(batch) if batch else {})}
        with timer("update"):
            updated = {**distilled, **await update(run, batch)}
        with timer("publish"):
            synced = await sync_weights(run)
        pending = pending[1:]
    figures = {**rollout_metrics(groups), **penalty, **updated, **synced, **timer.step_metrics(groups)}
    run.tracker.metrics(state.step + 1, figures)
    if updated:
        run.ranking.check(figures, run.directory)
    prompt_index = state.prompt_index + len(prompts)
    return replace(state, step=state.step + 1, prompt_index=prompt_index, figures=figures, pending=pending)


async def rollout_with_advantages(
    run: Run, state: State, prompts: Prompts, stop: asyncio.Event
) -> tuple[list[Group], Prompts, Metrics]:
    """Rollout, reward and advantages of a step. Dynamic sampling draws more prompts for groups without advantages.

    Returns the groups, all prompts drawn, and metrics of the KL penalty in the reward.
    """
    rewarded, penalty = await penalise(run.algorithm, run.trainer, await _or_stopped(stop, rollout(run, prompts)))
    groups = compute_advantages(run.algorithm, rewarded)
    for _ in range(run.algorithm.max_resample_rounds if run.distiller is None else 0):
        if (missing := run.prompts_per_step - sum(group.has_advantage for group in groups)) <= 0:
            break
        more = draw_prompts(run.problems, run.seed, state.prompt_index + len(prompts), missing)
        prompts = [*prompts, *more]
        groups = compute_advantages(run.algorithm, [*groups, *await _or_stopped(stop, rollout(run, more))])
    return groups, prompts, penalty


async def rollout(run: Run, prompts: Prompts) -> list[Group]:
    """Samples and rewards a group of completions per prompt. A group is graded while others still generate."""
    return await asyncio.gather(*(run.workflow.run(problem, prompt_index) for prompt_index, problem in prompts))


def compute_advantages(algorithm: Algorithm, groups: Sequence[Group]) -> list[Group]:
    """Returns the groups with the advantage of every sample set."""
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


def has_gradient(run: Run, group: Group) -> bool:
    """Whether a group has a gradient: a non-zero advantage, or a loss term that needs none (KL, entropy, critic)."""
    has_tokens = any(sample.mask.any() for sample in group.samples)
    return has_tokens and (run.algorithm.requirements.zero_advantage or group.has_advantage)


def _batch(run: Run, groups: Sequence[Group]) -> Sequence[Group]:
    """Returns the groups to train on. Dynamic sampling (`max_resample_rounds`) filters out groups with zero advantages.
    It is off with a teacher, which has a signal for every group."""
    filters = run.algorithm.max_resample_rounds and run.distiller is None
    return [group for group in groups if group.has_advantage] if filters else groups


async def update(run: Run, groups: Sequence[Group]) -> Metrics:
    """Updates the policy: one optimizer step per minibatch and epoch. Minibatches without a gradient are skipped."""
    if run.mask_truncated:
        groups = mask_truncated(groups)
        warn_if_all_are_masked(groups, run.warned)
    others = [group for group in groups if not has_gradient(run, group)]
    groups = [group for group in groups if has_gradient(run, group)]
    # With a single optimizer step, its own forward pass gives the old log-probs.
    if run.algorithm.requirements.old_logprobs and run.minibatches * run.ppo_epochs > 1:
        groups = await compute_old_logprobs(run, groups)
    advantage_figures: Metrics = {}
    if run.critic and groups:
        groups = cast(TrainsCritic, run.algorithm).compute_gae(await compute_values(run, groups))
        advantage_figures = advantage_metrics(groups)
    metrics: dict[str, list[float]] = {}
    steps = min(run.minibatches, len(groups))
    parts = list(zip(_split(groups, steps), _split(others, steps), strict=True))
    for part, rest in parts * run.ppo_epochs:
        figures = {**await run.trainer.forward_backward([*part, *rest]), **await run.trainer.optim_step()}
        for name, value in figures.items():
            metrics.setdefault(name, []).append(value)
    if steps < run.minibatches:
        await run.trainer.skip_steps((run.minibatches - steps) * run.ppo_epochs)
    return {**advantage_figures, **{name: _combine(name, values) for name, values in metrics.items()}}


async def compute_old_logprobs(run: Run, groups: Sequence[Group]) -> list[Group]:
    """Returns the groups with the trainer's own log-probs, computed before the first update."""
    logprobs = map(float_array, await run.trainer.score([sample for group in groups for sample in group.samples]))
    return [
        replace(group, samples=tuple(replace(sample, old_logprobs=next(logprobs)) for sample in group.samples))
        for group in groups
    ]


async def compute_values(run: Run, groups: Sequence[Group]) -> list[Group]:
    """Returns the groups with the critic's values, computed before the first update."""
    samples = [sample for group in groups for sample in group.samples]
    values = map(float_array, await run.trainer.compute_values(samples))
    return [
        replace(group, samples=tuple(replace(sample, values=next(values)) for sample in group.samples))
        for group in groups
    ]


def _combine(name: str, values: Sequence[float]) -> float:
    return max(values) if name.endswith("/max") else sum(values) / len(values)


async def sync_weights(run: Run) -> Metrics:
    """Publishes the trainer's weights and loads them into the engine."""
    return await run.engine.load(await run.trainer.publish()) or {}


async def evaluate_due(run: Run, state: State, stop: asyncio.Event) -> State:
    """Runs the evaluations due at this step: held-out problems and benchmarks."""
    before = state
    if _due(run, state, run.eval_every) and state.step not in state.scores:
        state = await evaluate_held_out(run, state, stop)
    for benchmark in run.benchmarks:
        if _due(run, state, benchmark.every) and state.step not in state.benchmarks.get(benchmark.name, {}):
            state = await evaluate_one_benchmark(run, state, benchmark, stop)
    if state != before:
        run.ranking.check(state.figures, run.directory)
    return state


async def evaluate_held_out(run: Run, state: State, stop: asyncio.Event) -> State:
    """Evaluates on the held-out problems."""
    timer = StepTimer()
    with timer("eval"):
        found = await _or_stopped(stop, evaluate(run.eval_workflow, run.held_out))
    run.tracker.groups(state.step, "test", found.groups)
    figures = {**found.metrics, **await eval_loss(run), **timer.seconds_by_stage}
    run.tracker.metrics(state.step, figures)
    scores = {**state.scores, state.step: found.score}
    return replace(state, scores=scores, figures={**state.figures, **figures})


async def eval_loss(run: Run) -> Metrics:
    """Mean cross-entropy per token of the held-out completions, if any (SFT)."""
    if not run.eval_samples:
        return {}
    scored = await run.trainer.score(run.eval_samples)
    tokens = sum(sample.response_length for sample in run.eval_samples)
    return {"val/loss": -math.fsum(each for row in scored for each in row) / tokens}


async def evaluate_one_benchmark(run: Run, state: State, benchmark: Benchmark, stop: asyncio.Event) -> State:
    """Evaluates on one benchmark."""
    timer, name = StepTimer(), benchmark.name
    with timer(f"eval/{name}"):
        found = await _or_stopped(stop, evaluate_benchmark(benchmark))
    run.tracker.groups(state.step, f"test-{name}", found.groups)
    figures = {**found.metrics, **timer.seconds_by_stage}
    run.tracker.metrics(state.step, figures)
    scores = {**state.benchmarks.get(name, {}), state.step: found.score}
    return replace(state, benchmarks={**state.benchmarks, name: scores}, figures={**state.figures, **figures})


async def save_checkpoint(run: Run, state: State) -> None:
    """Saves a checkpoint of this step and deletes those that are neither among the best nor the last."""
    with run.directory.new_checkpoint(state.step) as path:
        await run.trainer.save(path)
        write_state(path, state, run.health)
    link_checkpoints(run, state)
    run.directory.prune_checkpoints(run.ranking.best_steps(run.directory))


def link_checkpoints(run: Run, state: State) -> None:
    """Points the link `last` to the checkpoint of this state, and `best` to the best one."""
    run.directory.point("last", state.step)
    for step in run.ranking.best_steps(run.directory)[:1]:
        run.directory.point("best", step)


class _Stopped(Exception):
    """`stop` was set during work that can be repeated."""


async def _or_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of `work`; raises _Stopped as soon as `stop` is set."""
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
    """Splits into near-equal parts, in order; some are empty if there are fewer groups than parts."""
    cuts = [len(groups) * part // max(1, parts) for part in range(parts + 1)]
    return [groups[start:end] for start, end in pairwise(cuts)]
