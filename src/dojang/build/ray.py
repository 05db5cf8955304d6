"""Builds one policy of a run on a Ray cluster: its trainers and engines are actors.

Functions of this file run in the actors and build the same parts as a run in one process (local.py).
"""

import asyncio
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from dojang import models
from dojang.build.local import (
    LocalPolicy,
    Numerics,
    load_tokenizer,
    make_engine,
    make_weights,
    numerics,
    numerics_on,
    prepare_torch,
)
from dojang.cluster.ray.actors import Actor
from dojang.cluster.ray.engines import RayEngine, Sampler
from dojang.cluster.ray.object_store import LatestWeights, PublishedWeights, ReceivedWeights, get_weights
from dojang.cluster.ray.placement import Placement, gpus_each, reserve
from dojang.cluster.ray.trainers import Rank, RayTrainer, set_rank_environment
from dojang.cluster.runtime_config import RayConfig, engine_gpus
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError
from dojang.inference.engine_pool import EnginePool
from dojang.protocols import Algorithm, RolloutEngine
from dojang.trainer.process_group import join_process_group
from dojang.weight_sync.pack import decode
from dojang.weight_sync.versions import WeightVersions

__all__ = ["RayPolicy", "make_rank", "make_sampler", "resolve_numerics"]


def resolve_numerics(config: RunConfig) -> tuple[RunConfig, Numerics]:
    """Resolves model.device and model.dtype by the cluster's GPUs: the driver's machine may have none."""
    assert isinstance(config.runtime, RayConfig)
    device = "cuda" if gpus_each(config.runtime, config.model.device) else "cpu"
    if config.model.device == "cuda" and device == "cpu":
        raise ConfigError("model.device=cuda, but the cluster has no GPU; use model.device=auto, or machines with GPUs")
    numeric = numerics_on(torch.device(device), config)
    dtype = str(numeric.compute).removeprefix("torch.")
    return config.model_copy(
        update={"model": config.model.model_copy(update={"device": device, "dtype": dtype})}
    ), numeric


class RayPolicy:
    """A policy whose trainers and engines are Ray actors; the counterpart of LocalPolicy."""

    def __init__(self, config: RunConfig, numeric: Numerics, tokenizer: PreTrainedTokenizerBase) -> None:
        assert isinstance(config.runtime, RayConfig)
        self._config, self._runtime = config, config.runtime
        self.tokenizer = tokenizer
        self._numeric = numeric
        self.weights: LatestWeights | WeightVersions = LatestWeights(keep=config.loop.kept_versions)
        if config.rollout.engine.external:
            self.weights = make_weights(config, numeric)
        self.served = make_weights(config, numeric) if config.loop.other_workers else None
        """Weights for rollout workers, which fetch them from the driver."""
        self._served_base: Any = None
        """Object reference of the LoRA base weights that it holds."""
        self._gpus = gpus_each(self._runtime, config.model.device)
        # Before the engines: those are placed one by one around the trainers.
        self._placements = self._reserve("trainers", self._runtime.trainers, gpus=self._gpus)

    def make_engine(self) -> RolloutEngine:
        """Builds the inference engines: Ray actors, or a client of external servers."""
        if isinstance(self.weights, WeightVersions):
            source = self._config.model.name
            return make_engine(self._config, self._numeric, source, None, self.tokenizer, self.weights)
        gpus = engine_gpus(self._gpus, self._config.rollout.engine.gpus())
        engines = []
        for at in range(self._runtime.engines):  # each in its own placement group, so that each can be rescheduled
            (placement,) = self._reserve(f"engine {at + 1}", 1, gpus=gpus)
            sampler = partial(make_sampler, self._config, alone=self._gpus >= 1)
            engines.append(RayEngine(sampler, placement, self.weights, self._runtime.timeout_s))
        return EnginePool(engines, timeout_s=self._runtime.timeout_s)

    def make_trainer(self, algorithm: Algorithm) -> RayTrainer:
        """Builds the trainer. Each rank makes its own algorithm object."""
        world = self._runtime.trainers

        def factory(rank: int, address: tuple[str, int]) -> "partial[Rank]":
            return partial(make_rank, self._config, rank, world, address)

        return RayTrainer(factory, self._placements, self._on_publish, self._runtime.timeout_s)

    def _reserve(self, what: str, count: int, *, gpus: float) -> list[Placement]:
        runtime = self._runtime
        return reserve(what, count, cpus=runtime.cpus, gpus=gpus, strategy="PACK", timeout_s=runtime.timeout_s)

    async def _on_publish(self, version: int, weights: PublishedWeights, holder: Actor) -> None:
        if isinstance(self.weights, LatestWeights):
            self.weights.announce(version, weights, partial(holder.call, "put_merged"))
        for store in (self.weights, self.served):
            if isinstance(store, WeightVersions):
                await self._copy_here(store, version, weights, holder)

    async def _copy_here(self, store: WeightVersions, version: int, weights: PublishedWeights, holder: Actor) -> None:
        """Copies a version from the object store to the driver: with LoRA the factors, and the base weights once."""
        if weights.factors is None:
            tensors = get_weights(await holder.wait(weights.whole))
            return await asyncio.to_thread(store.publish, version, tensors)
        pack = await asyncio.to_thread(decode, await holder.wait(weights.factors))
        tensors = {}
        if weights.whole != self._served_base:
            tensors, self._served_base = get_weights(await holder.wait(weights.whole)), weights.whole
        await asyncio.to_thread(store.publish, version, tensors, pack.factors, pack.checksum)


def make_rank(config: RunConfig, rank: int, world: int, address: tuple[str, int]) -> Rank:
    """Builds one trainer rank, inside its actor."""
    set_rank_environment(rank, world, address)
    numeric = numerics(config)
    prepare_torch(numeric.device)
    ranks = join_process_group(numeric.device, config.train.sequence_parallel)
    source = models.resolve(config.model.name)
    tokenizer, _ = load_tokenizer(source)
    # The driver computes deltas for remote servers.
    deltas = config.rollout.engine.weight_sync == "delta" and not config.rollout.engine.external
    weights = WeightVersions(numeric.compute, deltas=int(deltas))
    policy = LocalPolicy(config, numeric, ranks, source, tokenizer, weights)
    return Rank(policy.make_trainer(config.algo.make(config.rollout.max_tokens)), policy.weights)


def make_sampler(config: RunConfig, *, alone: bool) -> Sampler:
    """Builds one engine, inside its actor. `alone`: no other process uses its GPU. Judges use other CPUs."""
    numeric = numerics(config)
    prepare_torch(numeric.device)
    source = models.resolve(config.model.name)
    tokenizer, _ = load_tokenizer(source)
    weights = ReceivedWeights(numeric.device)
    threads = torch.get_num_threads()
    engine = make_engine(config, numeric, source, None, tokenizer, weights, alone=alone, threads=threads)
    return Sampler(engine, weights)
