"""Delta weight sync to vLLM, over a fake connection that holds weights as vLLM's processes do."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dojang.core.checksum import checksum
from dojang.inference.engine_pool import EnginePool
from dojang.inference.vllm_base import ModelInfo, VllmBaseEngine
from dojang.inference.vllm_protocol import VllmOutput
from dojang.protocols import Patch
from dojang.types import Sampling
from dojang.weight_sync.delta_receiver import DeltaReceiver
from dojang.weight_sync.pack import Pack, encode
from dojang.weight_sync.pack_receiver import PackReceiver
from dojang.weight_sync.versions import WeightVersions
from dojang.weight_sync.weight_files import DeltaWeightFiles, WeightFiles

T = TypeVar("T")
EMBEDDING = 4000


class Vllm:
    """A fake connection to a vLLM that holds weights and can be restarted."""

    def __init__(self) -> None:
        self.restart()
        self.sizes: list[int] = []

    def restart(self) -> None:
        self.receiver, self.holds, self.version = DeltaReceiver(), dict[str, Tensor](), 0

    async def ready(self) -> ModelInfo:
        return ModelInfo(100, 50, 0)

    async def generate(self, prompt: Sequence[int], wanted: Mapping[str, Any], salt: Callable[[], str]) -> VllmOutput:
        return VllmOutput((5,), (-1.0,), "length")

    async def abort(self) -> None: ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def update(self, info: Mapping[str, Any], label: str) -> None:
        path = Path(info["path"])
        self.sizes.append(path.stat().st_size)
        try:
            found = self.receiver.receive(
                path,
                info["checksum"],
                base=info.get("base", ""),
                keep=info.get("keep", False),
                device=torch.device("cpu"),
            )
        except ValueError as error:  # as failures of vLLM's processes arrive
            raise RuntimeError(f"vLLM failed: {error}") from error
        self.holds = {name: each.clone() for name, each in found.items()}
        self.version = int(label)

    async def state(self) -> int | None:
        return self.version

    async def close(self) -> None: ...


class World:
    """A trainer's weights, and an engine that gets them."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
        self.store, self.connection, self.folder = WeightVersions(torch.bfloat16, deltas=1), Vllm(), folder
        embedding = torch.ones(EMBEDDING)
        self.weights = {"embedding": embedding, "head": embedding, "norm": torch.ones(8)}  # the head is tied
        self.engine = self.beside(self.connection, tokenizer)
        self.publish(0)

    def beside(self, connection: Vllm, tokenizer: PreTrainedTokenizerBase) -> VllmBaseEngine:
        return VllmBaseEngine(connection, DeltaWeightFiles(self.folder), tokenizer, self.store)

    def publish(self, version: int) -> None:
        self.weights["embedding"][version] = version + 2.0
        self.weights["norm"] += 1
        self.store.publish(version, self.weights)

    def files(self) -> list[Path]:
        return [path for path in self.folder.rglob("*") if path.is_file()]

    def check(self, version: int) -> None:
        """vLLM holds what was published, and nothing lies about."""
        wanted = self.store.fetch(version)
        assert self.connection.version == version
        assert {name: each.tolist() for name, each in self.connection.holds.items()} == {
            name: each.tolist() for name, each in wanted.items()
        }
        assert self.files() == []


@pytest.fixture
def world(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> World:
    return World(tokenizer, tmp_path)


def run(world: World, play: Callable[[], Awaitable[T]]) -> T:
    async def whole() -> T:
        try:
            return await asyncio.wait_for(play(), 30)
        finally:
            await world.engine.close()

    return asyncio.run(whole())


def transfer(figures: Mapping[str, float]) -> dict[str, float]:
    """Metrics without the time."""
    return {name: value for name, value in figures.items() if not name.startswith("timing_s/")}


def test_full_weights_are_sent_only_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        first = await world.engine.load(0)
        assert transfer(first) == {"weights/bytes": world.connection.sizes[0], "weights/whole": 1.0}
        world.check(0)
        for version in (1, 2, 5):
            world.publish(version)
            figures = await world.engine.load(version)
            assert transfer(figures) == {"weights/bytes": world.connection.sizes[-1], "weights/whole": 0.0}
            world.check(version)
            assert await world.engine.checksum() == checksum(world.store.fetch(version))

    run(world, play)
    whole, *deltas = world.connection.sizes
    assert whole > 2 * 2 * EMBEDDING
    assert max(deltas) < 1000
    assert not caplog.records


def test_unchanged_weights_make_an_empty_delta(world: World) -> None:
    async def play() -> None:
        await world.engine.load(0)
        world.store.publish(1, world.weights)
        await world.engine.load(1)
        world.store.publish(1, world.weights)
        figures = await world.engine.load(1)
        assert figures["weights/whole"] == 0.0
        world.check(1)

    run(world, play)


def missed(world: World) -> None:
    """An update that did not come."""
    world.publish(1)


def restarted(world: World) -> None:
    """At a version that the engine can tell from its own."""
    world.connection.restart()


def restarted_unseen(world: World) -> None:
    world.connection.restart()
    world.connection.version = world.engine._version or 0


def spoilt(world: World) -> None:
    for each in world.connection.receiver._tensors.values():
        each += 1


def updated_by_another(world: World) -> None:
    world.connection.version = 77


@pytest.mark.parametrize(
    ("happens", "words"),
    [
        (missed, "the changes since version 4 are not available"),
        (restarted, "vLLM holds version 0, not 4"),
        (restarted_unseen, "held are none"),
        (spoilt, "the weights have checksum"),
        (updated_by_another, "vLLM holds version 77, not 4"),
    ],
)
def test_full_weights_are_sent_when_a_delta_is_not_possible(
    world: World, caplog: pytest.LogCaptureFixture, happens: Callable[[World], None], words: str
) -> None:
    async def play() -> None:
        await world.engine.load(0)
        world.publish(4)
        await world.engine.load(4)
        happens(world)
        world.publish(6)
        figures = await world.engine.load(6)
        assert figures["weights/whole"] == 1.0
        world.check(6)
        assert (await world.engine.state()).dirty == ""
        [completion] = await world.engine.generate((1, 2), 1, Sampling(1.0, 4))
        assert completion.version == 6
        world.publish(7)
        figures = await world.engine.load(7)
        assert figures["weights/whole"] == 0.0
        world.check(7)

    run(world, play)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "sending the full weights of version 6" in record.getMessage()
    assert words in record.getMessage()


def test_unreachable_engine_raises_and_gets_full_weights_later(world: World) -> None:
    async def play() -> None:
        await world.engine.load(0)
        alive = world.connection.update

        async def dead(info: Mapping[str, Any], label: str) -> None:
            raise RuntimeError("is dead")

        world.connection.update = dead  # type: ignore[method-assign]
        world.publish(1)
        with pytest.raises(RuntimeError, match="is dead"):
            await world.engine.load(1)
        assert world.files() == []
        world.connection.update = alive  # type: ignore[method-assign]
        figures = await world.engine.load(1)
        assert figures["weights/whole"] == 1.0
        world.check(1)

    run(world, play)


def test_delta_sent_from_outside_needs_a_checksum(world: World) -> None:
    patch = Patch("norm", torch.tensor([3]), torch.tensor([9.0]))

    async def play() -> None:
        with pytest.raises(ValueError, match="its initial weights cannot be read here"):
            await world.engine.begin(1, base=0)
        await world.engine.load(0)
        changed = {name: each.clone() for name, each in world.store.fetch(0).items()}
        changed["norm"][3] = 9.0
        update = await world.engine.begin(1, base=0)
        await update.patch([patch])
        await update.commit(checksum(changed))
        assert world.connection.holds["norm"].tolist() == changed["norm"].tolist()
        assert await world.engine.checksum() == checksum(changed)
        update = await world.engine.begin(2, base=1)
        await update.patch([patch])
        with pytest.raises(ValueError, match="pass the checksum of all weights"):
            await update.commit()

    run(world, play)


def test_engine_pool_sums_metrics(world: World, tokenizer: PreTrainedTokenizerBase) -> None:
    async def play() -> None:
        other = Vllm()
        pool = EnginePool([world.engine, world.beside(other, tokenizer)])
        whole = await pool.load(0)
        assert whole["weights/whole"] == 2.0
        other.restart()
        other.version = 3
        world.publish(1)
        figures = await pool.load(1)
        sent = world.connection.sizes[-1] + other.sizes[-1]
        assert transfer(figures) == {"weights/bytes": sent, "weights/whole": 1.0}
        await pool.close()

    run(world, play)


@pytest.mark.parametrize("files", [DeltaWeightFiles, WeightFiles])
def test_packs_are_applied_and_full_weights_follow_what_does_not_fit(
    world: World, tokenizer: PreTrainedTokenizerBase, files: type[WeightFiles], tmp_path: Path
) -> None:
    """To vLLM that keeps the weights for deltas, and to one that is sent full files."""
    world.engine = VllmBaseEngine(world.connection, files(tmp_path), tokenizer, None)
    receiver, kinds = PackReceiver(world.engine), list[str]()

    async def load(version: int, spoil: Callable[[Pack], Pack] = lambda pack: pack) -> list[str]:
        async def fetch(base: int | None, merge: bool) -> bytes:
            pack = world.store.pack(version, base, merge=merge)
            kinds.append(pack.kind)
            return encode(spoil(pack) if pack.kind == "delta" else pack)

        kinds.clear()
        await receiver.load(version, fetch)
        assert await world.engine.checksum() == world.store.checksum(version)
        assert {name: each.tolist() for name, each in world.connection.holds.items()} == {
            name: each.tolist() for name, each in world.store.fetch(version).items()
        }
        return kinds

    async def play() -> None:
        assert await load(0) == ["full"]
        world.publish(1)
        assert await load(1) == ["delta"]
        world.publish(2)
        assert await load(2, lambda pack: replace(pack, base_checksum="0123456789abcdef")) == ["delta", "full"]
        world.publish(3)
        assert await load(3, lambda pack: replace(pack, checksum="0123456789abcdef")) == ["delta", "full"]
        world.publish(4)
        assert await load(4) == ["delta"]

    run(world, play)
