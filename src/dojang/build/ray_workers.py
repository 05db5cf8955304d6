"""Builds the rollout workers of a run on a Ray cluster: the driver's side and the actors' side."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import ray

from dojang.build.serve_worker import describe_run, work
from dojang.build.worker_config import worker_config
from dojang.cluster.ray.placement import gpus_each, nodes, refuse_too_many
from dojang.cluster.ray.rollout_workers import RayWorkers, WorkerActor
from dojang.cluster.runtime_config import RayConfig, engine_gpus
from dojang.config.run_config import RunConfig
from dojang.types import Problem

__all__ = ["judge_share", "make_ray_workers", "make_worker_actor"]


def make_ray_workers(config: RunConfig, data: Mapping[str, Sequence[Problem]]) -> RayWorkers:
    """Builds the worker actors, each with the CPUs and GPUs of an engine. None is started yet. They get the problems
    through the object store: nodes need no files of the dataset."""
    runtime, count = config.runtime, config.loop.workers
    assert isinstance(runtime, RayConfig)
    cpus, gpus = runtime.cpus, engine_gpus(gpus_each(runtime, config.model.device), config.rollout.engine.gpus())
    if count:
        remedy = "see loop.workers, runtime.cpus and runtime.gpus"
        refuse_too_many("rollout workers", count, cpus=cpus, gpus=gpus, remedy=remedy)
    factory = partial(make_worker_actor, config, ray.put(data) if count else None, cpus=cpus, gpus=gpus)
    return RayWorkers(factory, count, cpus=cpus, gpus=gpus, timeout_s=runtime.timeout_s)


def make_worker_actor(config: RunConfig, data: Any, *, cpus: float, gpus: float) -> WorkerActor:
    """Builds the object of a worker's actor, inside it. The worker builds its parts when it has the run's address.
    `data` is the object reference of the problems."""

    async def serve(url: str, token: str) -> None:
        assert isinstance(config.runtime, RayConfig)
        from dojang.build.rollout_worker import build_worker

        timeout_s = config.runtime.timeout_s
        description = await describe_run(url, token, timeout_s)
        own = [] if config.judge.workers else [f"judge.workers={_judges_here(config.loop.workers, cpus, gpus)}"]
        alone = gpus >= 1 and len(config.roles()) == 1
        build = partial(build_worker, description, worker_config(description, own), alone=alone, data=await data)
        worker = await asyncio.to_thread(build)
        await work(worker, url, token, timeout_s, asyncio.Event())

    return WorkerActor(serve)


def _judges_here(workers: int, cpus: float, gpus: float) -> int:
    """Number of programs that a worker on this node judges at a time."""
    here = ray.get_runtime_context().get_node_id()
    node = next(each for each in nodes() if each.id == here)
    return judge_share(node.cpus, node.gpus, workers, cpus=cpus, gpus=gpus)


def judge_share(node_cpus: float, node_gpus: float, workers: int, *, cpus: float, gpus: float) -> int:
    """A worker's share of a node's CPUs, if as many workers are there as can be: each judges its own answers."""
    most = min(workers, node_cpus / cpus, node_gpus / gpus if gpus else math.inf)
    return max(1, int(node_cpus / max(1, int(most))))
