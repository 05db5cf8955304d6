"""Ask once, draw n answers, have each judged.

A verdict of JUDGE_ERROR says nothing about the answer: the grading is tried again, and a sample that still has
no verdict is dropped from its group and counted. It never trains.
"""

import asyncio
from dataclasses import replace

from dojang.protocols import Renderer, RolloutEngine, Task
from dojang.types import Group, Outcome, Problem, Sample, Sampling
from dojang.workflows.grading import graded

__all__ = ["SingleTurn"]


class SingleTurn:
    """The Workflow of this file."""

    def __init__(
        self, engine: RolloutEngine, task: Task, renderer: Renderer, *, samples: int, sampling: Sampling
    ) -> None:
        self._engine = engine
        self._task = task
        self._renderer = renderer
        self._samples = samples
        self._sampling = sampling

    async def run(self, problem: Problem, ordinal: int) -> Group:
        prompt = self._renderer.render(problem.messages)
        sampling = replace(self._sampling, ordinal=ordinal)
        completions = await self._engine.generate(prompt, self._samples, sampling)
        # Whatever was said more than once is judged once: the same words never get different rewards.
        texts = list(dict.fromkeys(completion.text for completion in completions))
        verdicts = dict(
            zip(texts, await asyncio.gather(*(graded(self._task, problem, each) for each in texts)), strict=True)
        )
        samples = [
            Sample.of(prompt, completion, verdicts[completion.text], index)
            for index, completion in enumerate(completions)
        ]
        judged = tuple(sample for sample in samples if sample.verdict.outcome is not Outcome.JUDGE_ERROR)
        unjudged = tuple(sample for sample in samples if sample.verdict.outcome is Outcome.JUDGE_ERROR)
        return Group(problem, ordinal, judged, unjudged)
