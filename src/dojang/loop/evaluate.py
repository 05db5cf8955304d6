"""The policy on held-out problems: the share of answers that are right, per data source."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from dojang.errors import HealthError
from dojang.protocols import Workflow
from dojang.rundir import SCORE, SOURCE_SCORE
from dojang.types import Group, Metrics, Outcome, Problem

__all__ = ["Evaluation", "evaluate"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What an evaluation found."""

    score: float
    """Share of judged answers that are right, over all sources."""
    metrics: Metrics
    groups: tuple[Group, ...]


async def evaluate(workflow: Workflow, problems: Sequence[Problem]) -> Evaluation:
    """Attempt every problem once per sample and count what is accepted."""
    groups = await asyncio.gather(*(workflow.run(problem, at) for at, problem in enumerate(problems)))
    right: defaultdict[str, list[bool]] = defaultdict(list)
    for group in groups:
        for sample in group.samples:
            right[group.problem.source].append(sample.verdict.outcome is Outcome.ACCEPTED)
    everything = [accepted for source in right.values() for accepted in source]
    if not everything:
        complaints = [error for group in groups for error in group.judge_errors]
        raise HealthError(f"not one answer of the evaluation could be judged; the last failure was: {complaints[-1]}")
    metrics = {f"{SOURCE_SCORE}{source}": sum(each) / len(each) for source, each in right.items()}
    metrics[SCORE] = sum(everything) / len(everything)
    metrics["val/judge_errors"] = float(sum(len(group.judge_errors) for group in groups))
    lengths = [sample.response_length for group in groups for sample in group.samples]
    metrics["val/response_length/mean"] = sum(lengths) / len(lengths)
    return Evaluation(metrics[SCORE], metrics, tuple(groups))
