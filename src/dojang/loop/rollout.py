"""Rollouts of one batch: samples and rewards a group of completions per prompt."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from dojang.loop.advantages import compute_advantages
from dojang.loop.prompt_sampler import draw_prompts
from dojang.loop.run import Run
from dojang.loop.watchdog import activity
from dojang.types import Group, Metrics, Problem

__all__ = ["Batch", "rollout", "sample_batch"]


@dataclass(frozen=True, slots=True)
class Batch:
    """The groups of one step, with rewards and without advantages."""

    groups: tuple[Group, ...]
    end: int
    """Prompt index after its last prompt."""
    figures: Metrics = field(default_factory=dict)
    """Metrics of the rollout: seconds, weight transfer."""


async def sample_batch(run: Run, first: int) -> tuple[list[Group], int]:
    """Samples the next batch, from prompt index `first` on; returns it with the prompt index after its last prompt.
    Dynamic sampling draws more prompts, in rounds, for groups whose rewards give no advantage; it is off with a
    teacher, which has a signal for every group."""
    prompts = draw_prompts(run.problems, run.seed, first, run.prompts_per_step, run.curriculum.skips)
    groups, end = await rollout(run, prompts), prompts[-1][0] + 1
    for _ in range(run.algorithm.max_resample_rounds if run.distiller is None else 0):
        rated = compute_advantages(run.algorithm, groups, run.credit)
        if (missing := run.prompts_per_step - sum(group.has_advantage for group in rated)) <= 0:
            break
        prompts = draw_prompts(run.problems, run.seed, end, missing, run.curriculum.skips)
        groups, end = [*groups, *await rollout(run, prompts)], prompts[-1][0] + 1
    return groups, end


async def rollout(run: Run, prompts: Sequence[tuple[int, Problem]]) -> list[Group]:
    """Samples and rewards a group of completions per prompt. A group is graded while others still generate."""

    async def run_one(prompt_index: int, problem: Problem) -> Group:
        with activity("rollout", prompt_index):
            return await run.workflow.run(problem, prompt_index)

    return await asyncio.gather(*(run_one(prompt_index, problem) for prompt_index, problem in prompts))
