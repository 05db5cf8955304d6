"""Update of the policy on one batch: minibatches, epochs, old log-probs, critic values."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import cast

from dojang.core.arrays import float_array
from dojang.loop.metrics import advantage_metrics
from dojang.loop.run import Run
from dojang.loop.truncation_mask import mask_truncated, warn_if_all_are_masked
from dojang.protocols import TrainsCritic
from dojang.types import Group, Metrics

__all__ = ["has_gradient", "select_groups", "update"]


def select_groups(run: Run, groups: Sequence[Group]) -> Sequence[Group]:
    """Returns the groups to train on. Dynamic sampling (`max_resample_rounds`) filters out groups with zero advantages.
    It is off with a teacher, which has a signal for every group."""
    filters = run.algorithm.max_resample_rounds and run.distiller is None
    return [group for group in groups if group.has_advantage] if filters else groups


def has_gradient(run: Run, group: Group) -> bool:
    """Whether a group has a gradient: a non-zero advantage, or a loss term that needs none (KL, entropy, critic)."""
    has_tokens = any(sample.mask.any() for sample in group.samples)
    return has_tokens and (run.algorithm.requirements.zero_advantage or group.has_advantage)


async def update(run: Run, groups: Sequence[Group]) -> Metrics:
    """Updates the policy: one optimizer step per minibatch and epoch. Minibatches without a gradient are skipped."""
    if run.mask_truncated:
        groups = mask_truncated(groups)
        warn_if_all_are_masked(groups, run.warned)
    others = [group for group in groups if not has_gradient(run, group)]
    groups = [group for group in groups if has_gradient(run, group)]
    # With a single optimizer step, its own forward pass gives the old log-probs.
    if run.algorithm.requirements.old_logprobs and run.minibatches * run.ppo_epochs > 1:
        groups = await _compute_old_logprobs(run, groups)
    advantage_figures: Metrics = {}
    if run.critic and groups:
        groups = cast(TrainsCritic, run.algorithm).compute_gae(await _compute_values(run, groups))
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


async def _compute_old_logprobs(run: Run, groups: Sequence[Group]) -> list[Group]:
    """Returns the groups with the trainer's own log-probs, computed before the first update."""
    logprobs = map(float_array, await run.trainer.score([sample for group in groups for sample in group.samples]))
    return [
        replace(group, samples=tuple(replace(sample, old_logprobs=next(logprobs)) for sample in group.samples))
        for group in groups
    ]


async def _compute_values(run: Run, groups: Sequence[Group]) -> list[Group]:
    """Returns the groups with the critic's values, computed before the first update."""
    samples = [sample for group in groups for sample in group.samples]
    values = map(float_array, await run.trainer.compute_values(samples))
    return [
        replace(group, samples=tuple(replace(sample, values=next(values)) for sample in group.samples))
        for group in groups
    ]


def _combine(name: str, values: Sequence[float]) -> float:
    return max(values) if name.endswith("/max") else sum(values) / len(values)


def _split(groups: Sequence[Group], parts: int) -> list[Sequence[Group]]:
    """Splits into near-equal parts, in order; some are empty if there are fewer groups than parts."""
    cuts = [len(groups) * part // max(1, parts) for part in range(parts + 1)]
    return [groups[start:end] for start, end in pairwise(cuts)]
