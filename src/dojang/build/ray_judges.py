"""Builds the judge of a run on a Ray cluster: the driver's side and the actors' side.

Separate from build/ray.py because judge actors do not import torch.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import ray

from dojang.cluster.ray.judges import JudgeActor, RayJudge, RayTask
from dojang.cluster.runtime_config import RayConfig
from dojang.config.run_config import RunConfig
from dojang.core.paths import cache_root
from dojang.protocols import Judge, Task
from dojang.types import Problem

__all__ = ["distribute_task", "make_judge", "make_judge_actor"]

Problems = Mapping[str, Sequence[Problem]]


def make_judge(config: RunConfig, problems: Problems) -> RayJudge:
    """Builds the judge over all nodes. Its actors start at the first use."""
    assert isinstance(config.runtime, RayConfig)
    own = problems if config.task.grades_with_problems else {}

    def factory(concurrency: int) -> "partial[JudgeActor]":
        return partial(make_judge_actor, config, concurrency)

    workers = config.task.worker_processes()
    most = config.judge.workers if workers is None else workers
    return RayJudge(factory, ray.put(own), max_per_node=most, timeout_s=config.runtime.timeout_s)


async def distribute_task(task: Task, config: RunConfig, judge: Judge) -> Task:
    """Distributes the grading of a task that uses worker processes over the cluster; returns other tasks unchanged."""
    if not isinstance(judge, RayJudge) or not config.task.grades_on_nodes:
        return task
    await judge.open()
    return RayTask(task, judge)


def make_judge_actor(config: RunConfig, concurrency: int, problems: Problems) -> JudgeActor:
    """Builds the judge inside its actor; it works on `concurrency` submissions at a time."""
    judge = config.judge.model_copy(update={"workers": concurrency, "url": []}).make(cache_root())
    task = config.task.with_workers(concurrency)
    if not task.grades_on_nodes:
        return JudgeActor(judge, None)
    return JudgeActor(judge, task.make(problems))
