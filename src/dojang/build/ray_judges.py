"""Judging of a run on a Ray cluster: what is made here, and in the processes that judge.

Apart from spread.py because those processes have no use for torch.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import ray

from dojang.cluster.ray.judges import Juror, RayJudge, RayTask
from dojang.cluster.runtime_config import RayConfig
from dojang.config.run_config import RunConfig
from dojang.core.paths import cache_root
from dojang.protocols import Judge, Task
from dojang.tasks.custom import CustomTaskConfig
from dojang.tasks.maths import MathsConfig
from dojang.tasks.reasoning_gym import ReasoningGymTaskConfig
from dojang.types import Problem

__all__ = ["make_judge", "make_juror", "spread_task"]

Problems = Mapping[str, Sequence[Problem]]


def make_judge(config: RunConfig, problems: Problems) -> RayJudge:
    """The judge of all machines. It costs nothing until it is used."""
    assert isinstance(config.runtime, RayConfig)
    own = problems if isinstance(config.task, CustomTaskConfig) else {}  # others need none to grade by

    def factory(seats: int) -> "partial[Juror]":
        return partial(make_juror, config, seats)

    counted = config.task if isinstance(config.task, MathsConfig | ReasoningGymTaskConfig) else config.judge
    return RayJudge(factory, ray.put(own), most=counted.workers, timeout_s=config.runtime.timeout_s)


async def spread_task(task: Task, config: RunConfig, judge: Judge) -> Task:
    """If it grades by processes, they are all over the cluster; otherwise the task as it is."""
    if not isinstance(judge, RayJudge) or not isinstance(config.task, _Verified):
        return task
    await judge.open()
    return RayTask(task, judge)


def make_juror(config: RunConfig, seats: int, problems: Problems) -> Juror:
    """One of the processes that judge, with so much to do at a time."""
    judge = config.judge.model_copy(update={"workers": seats, "url": []}).make(cache_root())
    task = config.task
    if isinstance(task, MathsConfig | ReasoningGymTaskConfig):
        task = task.model_copy(update={"workers": seats})
    return Juror(judge, task.make(problems) if isinstance(task, _Verified) else None)


_Verified = MathsConfig | ReasoningGymTaskConfig | CustomTaskConfig
