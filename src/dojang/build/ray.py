"""One model of a run on a Ray cluster: what asks it and teaches it is in processes elsewhere.

What they hold is made there, by functions of this file: the same parts, put together the same way, as in a run of one
process (learner.py).
"""

from functools import partial
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from dojang import models
from dojang.build.local import (
    Learner,
    Numerics,
    load_tokenizer,
    make_engine,
    make_servers,
    numerics,
    numerics_on,
    prepare_torch,
)
from dojang.cluster.ray.actors import Actor
from dojang.cluster.ray.engines import RayEngine, Sampler
from dojang.cluster.ray.object_store import Held, Shared, pick_up
from dojang.cluster.ray.placement import Place, gpus_each, reserve
from dojang.cluster.ray.trainers import Rank, RayTrainer, enter
from dojang.cluster.runtime_config import RayConfig, engine_gpus
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError
from dojang.inference.engine_pool import Fleet
from dojang.protocols import Algorithm, RolloutEngine
from dojang.trainer.process_group import join
from dojang.weight_sync.delta_store import DeltaWeights
from dojang.weight_sync.in_memory import MemoryWeights

__all__ = ["SpreadLearner", "make_rank", "make_sampler", "settled"]


def settled(config: RunConfig) -> tuple[RunConfig, Numerics]:
    """Decide by what the cluster has where and how precisely the arithmetic is done: the machine where this runs may
    have no GPU."""
    assert isinstance(config.runtime, RayConfig)
    device = "cuda" if gpus_each(config.runtime, config.model.device) else "cpu"
    if config.model.device == "cuda" and device == "cpu":
        raise ConfigError("model.device=cuda, but the cluster has no GPU; use model.device=auto, or machines with GPUs")
    numeric = numerics_on(torch.device(device), config)
    dtype = str(numeric.compute).removeprefix("torch.")
    return config.model_copy(
        update={"model": config.model.model_copy(update={"device": device, "dtype": dtype})}
    ), numeric


class SpreadLearner:
    """Like a Learner, but elsewhere."""

    def __init__(self, config: RunConfig, numeric: Numerics, tokenizer: PreTrainedTokenizerBase) -> None:
        assert isinstance(config.runtime, RayConfig)
        self._config, self._runtime = config, config.runtime
        self.tokenizer = tokenizer
        self._served = config.rollout.engine == "remote"
        kind = DeltaWeights if config.rollout.transfer == "delta" else MemoryWeights
        self.weights: Shared | MemoryWeights = kind(numeric.compute) if self._served else Shared()
        self._gpus = gpus_each(self._runtime, config.model.device)
        # Before engines, which are one by one and find their places around them.
        self._places = self._reserve("trainers", self._runtime.trainers, gpus=self._gpus)

    def make_engine(self) -> RolloutEngine:
        """What samples from it: processes of the cluster, or the servers that were named."""
        if isinstance(self.weights, MemoryWeights):
            return make_servers(self._config, self.tokenizer, self.weights)
        gpus = engine_gpus(self._gpus, self._config.rollout.tensor_parallel_size)
        engines = []
        for at in range(self._runtime.engines):  # each by itself, so that each can find another place
            (place,) = self._reserve(f"engine {at + 1}", 1, gpus=gpus)
            sampler = partial(make_sampler, self._config, alone=self._gpus >= 1)
            engines.append(RayEngine(sampler, place, self.weights, self._runtime.timeout_s))
        return Fleet(engines, timeout_s=self._runtime.timeout_s)

    def make_trainer(self, algorithm: Algorithm) -> RayTrainer:
        """What teaches it. The algorithm is made again by each process."""
        world = self._runtime.trainers

        def factory(rank: int, address: tuple[str, int]) -> "partial[Rank]":
            return partial(make_rank, self._config, rank, world, address)

        return RayTrainer(factory, self._places, self._deliver, self._runtime.timeout_s)

    def _reserve(self, what: str, count: int, *, gpus: float) -> list[Place]:
        runtime = self._runtime
        return reserve(what, count, cpus=runtime.cpus, gpus=gpus, strategy="PACK", timeout_s=runtime.timeout_s)

    async def _deliver(self, version: int, reference: Any, holder: Actor) -> None:
        if isinstance(self.weights, Shared):
            self.weights.announce(version, reference)
        else:
            self.weights.publish(version, pick_up(await holder.wait(reference)))


def make_rank(config: RunConfig, rank: int, world: int, address: tuple[str, int]) -> Rank:
    """One of the processes that train."""
    enter(rank, world, address)
    numeric = numerics(config)
    prepare_torch(numeric.device)
    ranks = join(numeric.device, config.train.sequence_parallel)
    source = models.resolve(config.model.name)
    tokenizer, _ = load_tokenizer(source)
    # What has changed is for those to find out who send it on.
    whole = config.model_copy(update={"rollout": config.rollout.model_copy(update={"transfer": "full"})})
    learner = Learner(whole, numeric, ranks, source, tokenizer)
    return Rank(learner.make_trainer(config.algo.make(config.rollout.max_tokens)), learner.weights)


def make_sampler(config: RunConfig, *, alone: bool) -> Sampler:
    """One of the processes that sample; `alone` if no other has its GPU. Its processors are its own: judges have
    others."""
    numeric = numerics(config)
    prepare_torch(numeric.device)
    source = models.resolve(config.model.name)
    tokenizer, _ = load_tokenizer(source)
    rollout = config.rollout.model_copy(update={"threads": config.rollout.threads or torch.get_num_threads()})
    weights = DeltaWeights(numeric.compute) if rollout.transfer == "delta" else Held()
    own = config.model_copy(update={"rollout": rollout})
    engine = make_engine(own, numeric, source, None, tokenizer, weights, alone=alone)
    return Sampler(engine, weights)
