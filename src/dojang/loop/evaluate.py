"""Evaluates the policy on held-out problems: accuracy and mean reward, over all and per data source.

`dojang eval` counts the same way.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dojang.core.run_dir import ACCURACY, REWARD, SOURCE_ACCURACY, SOURCE_REWARD
from dojang.loop.scores import Scores
from dojang.protocols import Workflow
from dojang.types import Group, Metrics, Problem

__all__ = ["Benchmark", "Evaluation", "evaluate", "evaluate_benchmark", "examine"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What an evaluation found."""

    score: float
    """Held-out accuracy, over the problems of all sources."""
    metrics: Metrics
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A further evaluation set of a run."""

    name: str
    every: int
    """Steps between evaluations."""
    problems: Sequence[Problem]
    workflow: Workflow


async def examine(
    workflow: Workflow, problems: Sequence[Problem], told: Callable[[], None] = lambda: None
) -> tuple[Group, ...]:
    """Attempt every problem; `told` is called whenever one is done."""

    async def attempt(place: int, problem: Problem) -> Group:
        group = await workflow.run(problem, place)
        told()
        return group

    return tuple(await asyncio.gather(*(attempt(place, problem) for place, problem in enumerate(problems))))


async def evaluate(workflow: Workflow, problems: Sequence[Problem]) -> Evaluation:
    """Attempt every problem and count what is accepted; HealthError if nothing could be judged."""
    groups = await examine(workflow, problems)
    scores = Scores.of(groups)
    metrics = {
        ACCURACY: scores.score,
        REWARD: scores.reward,
        "val/judge_errors": float(scores.judge_errors),
        "val/response_length/mean": scores.length,
    }
    judged = [group for group in groups if group.samples]
    for source in dict.fromkeys(group.problem.source for group in judged):
        found = Scores.of([group for group in judged if group.problem.source == source])
        metrics |= {f"{SOURCE_ACCURACY}{source}": found.score, f"{SOURCE_REWARD}{source}": found.reward}
    return Evaluation(scores.score, metrics, groups)


async def evaluate_benchmark(benchmark: Benchmark) -> Evaluation:
    """Evaluate on a benchmark, all sources of which count as one; HealthError if nothing could be judged."""
    groups = await examine(benchmark.workflow, benchmark.problems)
    scores, name = Scores.of(groups), benchmark.name
    metrics = {
        f"{SOURCE_ACCURACY}{name}": scores.score,
        f"{SOURCE_REWARD}{name}": scores.reward,
        f"val/judge_errors/{name}": float(scores.judge_errors),
    }
    return Evaluation(scores.score, metrics, groups)
