"""Single-turn workflow: samples `group_size` completions of one prompt and grades each.

A sample without a verdict (grade_with_retries.py) is excluded from its group and from training, and counted.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from dojang.protocols import Renderer, RolloutEngine, Task
from dojang.types import Group, Problem, Sample, Sampling
from dojang.workflows.grade_with_retries import grade_all, make_group
from dojang.workflows.section import RolloutPolicy, WorkflowSection

__all__ = ["SingleTurn", "SingleTurnConfig"]


class SingleTurnConfig(WorkflowSection):
    """Settings of the single-turn workflow: one model, one turn."""

    name: Literal["single_turn"] = "single_turn"

    def make(
        self, task: Task, policies: Mapping[str, RolloutPolicy], group_size: int, *, batch_turns: bool = True
    ) -> "SingleTurn":
        (policy,) = policies.values()
        return SingleTurn(policy.engine, task, policy.renderer, group_size=group_size, sampling=policy.sampling)


class SingleTurn:
    """The single-turn Workflow."""

    def __init__(
        self, engine: RolloutEngine, task: Task, renderer: Renderer, *, group_size: int, sampling: Sampling
    ) -> None:
        self._engine = engine
        self._task = task
        self._renderer = renderer
        self._group_size = group_size
        self._sampling = sampling

    async def run(self, problem: Problem, prompt_index: int) -> Group:
        prompt = self._renderer.render(problem.messages)
        sampling = replace(self._sampling, prompt_index=prompt_index)
        completions = await self._engine.generate(prompt, self._group_size, sampling)
        verdicts = await grade_all(self._task, problem, (each.text for each in completions))
        samples = [
            Sample.of(prompt, each, verdicts[each.text], at, temperature=sampling.temperature)
            for at, each in enumerate(completions)
        ]
        return make_group(problem, prompt_index, samples)
