"""Evaluates the policy on held-out problems: accuracy and mean reward, in total and per data source.

`dojang eval` computes them the same way.
"""

import asyncio
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from dojang.core.run_dir import ACCURACY, REWARD, SOURCE_ACCURACY, SOURCE_REWARD
from dojang.loop.scores import Scores
from dojang.loop.watchdog import activity
from dojang.protocols import Workflow
from dojang.types import Group, Metrics, Problem

__all__ = ["Benchmark", "Evaluation", "evaluate", "evaluate_benchmark", "run_all"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of an evaluation."""

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


async def run_all(
    workflow: Workflow,
    problems: Sequence[Problem],
    on_done: Callable[[Group], None] = lambda group: None,
    *,
    skip: Container[int] = (),
) -> tuple[Group, ...]:
    """Runs the workflow on every problem whose index is not in `skip`; calls `on_done` with each group."""

    async def run_one(index: int, problem: Problem) -> Group:
        with activity("problem", index):
            group = await workflow.run(problem, index)
        on_done(group)
        return group

    tasks = [
        asyncio.ensure_future(run_one(index, problem)) for index, problem in enumerate(problems) if index not in skip
    ]
    try:
        return tuple(await asyncio.gather(*tasks))
    finally:
        for task in tasks:  # after a failure, the others must not go on
            task.cancel()


async def evaluate(workflow: Workflow, problems: Sequence[Problem]) -> Evaluation:
    """Samples every problem and computes accuracy and reward; raises HealthError if nothing could be judged."""
    groups = await run_all(workflow, problems)
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
    """Evaluates on a benchmark, all its sources as one; raises HealthError if nothing could be judged."""
    groups = await run_all(benchmark.workflow, benchmark.problems)
    scores, name = Scores.of(groups), benchmark.name
    metrics = {
        f"{SOURCE_ACCURACY}{name}": scores.score,
        f"{SOURCE_REWARD}{name}": scores.reward,
        f"val/judge_errors/{name}": float(scores.judge_errors),
    }
    return Evaluation(scores.score, metrics, groups)
