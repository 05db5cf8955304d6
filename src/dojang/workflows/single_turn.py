"""Ask once, draw n answers, have each judged.

A sample that has no verdict (grade_with_retries.py) is dropped from its group and counted. It never trains.
"""

from dataclasses import replace
from typing import Literal

from dojang.core.section import Section
from dojang.protocols import Renderer, RolloutEngine, Task
from dojang.types import Group, Problem, Sample, Sampling
from dojang.workflows.grade_with_retries import grade_all, group_of

__all__ = ["SingleTurn", "SingleTurnConfig"]


class SingleTurnConfig(Section):
    """One model answers, once."""

    name: Literal["single_turn"] = "single_turn"


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
        verdicts = await grade_all(self._task, problem, (each.text for each in completions))
        samples = [Sample.of(prompt, each, verdicts[each.text], at) for at, each in enumerate(completions)]
        return group_of(problem, ordinal, samples)
