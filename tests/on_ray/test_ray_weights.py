"""Deltas and LoRA factors through the object store: which engines load them, and full weights whenever they do not
fit."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

pytest.importorskip("ray", reason="Ray is not installed here; make test-ray has it")

from dojang.cluster.ray import engines
from dojang.cluster.ray.actors import ActorLost
from dojang.cluster.ray.engines import RayEngine, Sampler
from dojang.cluster.ray.object_store import LatestWeights, PublishedWeights, ReceivedWeights
from dojang.engine.torch_engine import TorchEngine
from dojang.types import Sampling
from dojang.weight_sync.pack import encode
from dojang.weight_sync.versions import WeightVersions

ADAPTED = "model.layers.0.self_attn.q_proj.weight"


class Process:
    """An actor whose object is in this process; references are the things themselves."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler, self.dead, self.calls = sampler, False, list[tuple[str, int]]()

    async def prepare(self, factory: Any) -> None: ...

    async def call(self, method: str, *arguments: Any) -> Any:
        if self.dead:
            raise ActorLost("ActorDiedError")
        if method.startswith("load"):
            self.calls.append((method, arguments[0]))
        return await getattr(self.sampler, method)(*arguments)

    def kill(self) -> None:
        self.dead = True


class World:
    """A trainer's weights, and an engine on Ray."""

    def __init__(self, make_sampler: Callable[[], Sampler], trained: dict[str, torch.Tensor]) -> None:
        self.store, self.latest, self.trained = WeightVersions(torch.float32, deltas=1), LatestWeights(3), trained
        self.processes: list[Process] = []
        self.base: dict[str, Any] = {}
        self.sent: list[int] = []
        """Sizes of the packs with factors."""
        self._make_sampler = make_sampler
        self.engine = RayEngine(None, None, self.latest, 60.0)  # type: ignore[arg-type]

    def start(self, *_: Any) -> Process:
        self.processes.append(Process(self._make_sampler()))
        return self.processes[-1]

    def publish(self, version: int, spoil: Callable[[bytes], bytes] = bytes) -> None:
        """As a rank does, with arrays for references."""
        self.trained["model.norm.weight"][version] += 0.5
        self.store.publish(version, self.trained)
        whole = {name: (each.numpy().copy(), "float32") for name, each in self.store.fetch(version).items()}
        pack = self.store.delta(version - 1, version)
        data = None if pack is None else np.frombuffer(spoil(encode(pack)), np.uint8)
        self.latest.announce(version, PublishedWeights(whole, version - 1, data))

    def publish_factors(self, version: int, base: Mapping[str, torch.Tensor], spoil: str = "") -> None:
        """As a rank that trains LoRA does; `spoil` replaces the checksum of the merged weights."""
        weight = self.trained[ADAPTED]
        factors = {ADAPTED: (torch.full((weight.shape[0], 2), version / 8), torch.full((2, weight.shape[1]), 0.5))}
        self.store.publish(version, base, factors)
        pack = self.store.factors(version)
        assert pack is not None
        pack = replace(pack, checksum=spoil) if spoil else pack
        if base:
            self.base = {name: (each.numpy().copy(), "float32") for name, each in base.items()}
        data = np.frombuffer(encode(pack), np.uint8)
        self.sent.append(data.nbytes)

        async def merge(wanted: int) -> Any:
            return {name: (each.numpy(), "float32") for name, each in self.store.fetch(wanted).items()}

        self.latest.announce(version, PublishedWeights(self.base, factors=data), merge)

    async def load(self, version: int) -> list[tuple[str, int]]:
        """Calls that the load took. The engine holds the version afterwards."""
        process = None if self.engine._actor is None else self.processes[-1]
        done = 0 if process is None else len(process.calls)
        await self.engine.load(version)
        engine = self.processes[-1].sampler._engine
        assert isinstance(engine, TorchEngine)
        assert await engine.checksum() == self.store.checksum(version)
        [completion] = await self.engine.generate((5, 6, 7), 1, Sampling(1.0, 3))
        assert completion.version == version
        return self.processes[-1].calls[done if process is self.processes[-1] else 0 :]


@pytest.fixture
def world(
    micro_model: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> World:
    def make_sampler() -> Sampler:
        weights = ReceivedWeights()
        model = micro_model(torch.float32)
        return Sampler(TorchEngine(model, tokenizer, weights, max_num_seqs=4, weight_sync="delta"), weights)

    trained = {name: each.detach().clone() for name, each in micro_model(torch.float32, seed=3).named_parameters()}
    found = World(make_sampler, trained)
    monkeypatch.setattr(engines, "start_actor", found.start)
    monkeypatch.setattr(engines, "release", lambda places: None)
    return found


def test_deltas_follow_full_weights_until_one_does_not_fit(world: World) -> None:
    async def play() -> None:
        world.publish(0)
        assert await world.load(0) == [("load", 0)]
        for version in (1, 2):
            world.publish(version)
            assert await world.load(version) == [("load_delta", version)]
        world.publish(3)
        world.publish(4)  # a version is missed
        assert await world.load(4) == [("load", 4)]
        world.publish(5, lambda data: data[:-1] + bytes([data[-1] ^ 1]))
        assert await world.load(5) == [("load_delta", 5), ("load", 5)]
        world.processes[-1].kill()  # the engine is replaced
        world.publish(6)
        assert await world.load(6) == [("load", 6)]
        world.publish(7)
        assert await world.load(7) == [("load_delta", 7)]
        await world.engine.close()
        assert len(world.processes) == 2

    asyncio.run(asyncio.wait_for(play(), 60))


@pytest.mark.parametrize("weight_sync", ["full", "delta"])
def test_factors_alone_follow_the_base_weights(world: World, weight_sync: str) -> None:
    factors = "load_factors"

    async def play() -> None:
        world.publish_factors(0, world.trained)
        assert await world.load(0) == [(factors, 0), (factors, 0)]  # the second brings the base weights
        world.processes[-1].sampler._engine._deltas = weight_sync == "delta"  # type: ignore[attr-defined]
        for version in (1, 3):  # 2 is missed
            world.publish_factors(version, {})
            assert await world.load(version) == [(factors, version)]
        assert max(world.sent) < sum(each.nbytes for each in world.trained.values()) / 10
        world.publish_factors(4, {}, spoil="f" * 16)  # as if the engine's hardware added otherwise
        assert await world.load(4) == [(factors, 4), (factors, 4), ("load", 4)]
        world.publish_factors(5, {})
        assert await world.load(5) == [(factors, 5)]
        world.processes[-1].kill()  # the engine is replaced
        world.publish_factors(6, {})
        assert await world.load(6) == [(factors, 6), (factors, 6)]
        world.publish_factors(7, {name: each + 1 for name, each in world.trained.items()})  # another base
        assert await world.load(7) == [(factors, 7), (factors, 7)]
        await world.engine.close()

    asyncio.run(asyncio.wait_for(play(), 60))


def test_engine_with_other_weights_than_it_should_have_gets_full_ones(world: World) -> None:
    async def play() -> None:
        world.publish(0)
        await world.load(0)
        engine = world.processes[-1].sampler._engine
        assert isinstance(engine, TorchEngine)
        with torch.inference_mode():
            engine._scheduler.weights["model.embed_tokens.weight"][0, 0] += 1
        world.publish(1)
        assert await world.load(1) == [("load_delta", 1), ("load", 1)]
        await world.engine.close()

    asyncio.run(asyncio.wait_for(play(), 60))


def test_engine_samples_while_it_loads(world: World) -> None:
    async def play() -> None:
        world.publish(0)
        await world.load(0)
        hot = Sampling(temperature=5.0, max_tokens=300)
        running = [asyncio.create_task(world.engine.generate((5, 6, 7), 1, hot))]
        for version in (1, 2, 3):
            world.publish(version)
            loading = asyncio.create_task(world.engine.load(version))
            await asyncio.sleep(0)
            running.append(asyncio.create_task(world.engine.generate((5, 6, 7), 1, hot)))
            await loading
        for task in running:
            [completion] = await task
            assert completion.version <= 3
        await world.engine.close()

    asyncio.run(asyncio.wait_for(play(), 60))


def test_new_actor_refuses_requests_until_it_has_weights(world: World) -> None:
    async def play() -> None:
        sampler = world.start().sampler
        with pytest.raises(RuntimeError, match="weights version None, not 0"):
            await sampler.generate(0, (5, 6, 7), 1, Sampling(1.0, 3))
        world.publish(2)
        await sampler.load(2, world.latest.find(2).whole)
        with pytest.raises(RuntimeError, match="weights version 2, not 3"):
            await sampler.generate(3, (5, 6, 7), 1, Sampling(1.0, 3))
        assert len(await sampler.generate(2, (5, 6, 7), 1, Sampling(1.0, 3))) == 1
        await sampler.close()

    asyncio.run(asyncio.wait_for(play(), 60))
