"""Weights that go to vLLM as deltas, with a line that keeps them as its processes do."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dojang.core.checksum import checksum
from dojang.inference.engine_pool import Fleet
from dojang.inference.vllm_base import Facts, ServedEngine
from dojang.inference.vllm_protocol import Drawn
from dojang.protocols import Abilities, Patch
from dojang.types import Sampling
from dojang.weight_sync.delta_receiver import Kept
from dojang.weight_sync.delta_store import DeltaWeights
from dojang.weight_sync.weight_files import DeltaParcels

T = TypeVar("T")
ALL = Abilities(frozenset(("abort", "wait", "keep", "recompute")), True, True, False, False)
EMBEDDING = 4000


class Vllm:
    """A line to one that holds weights, and can be restarted."""

    def __init__(self) -> None:
        self.restart()
        self.sizes: list[int] = []

    def restart(self) -> None:
        self.kept, self.holds, self.version = Kept(), dict[str, Tensor](), 0

    async def ready(self) -> Facts:
        return Facts(100, 50, 0)

    async def draw(self, prompt: Sequence[int], wanted: Mapping[str, Any], salt: Callable[[], str]) -> Drawn:
        return Drawn((5,), (-1.0,), "length")

    async def abort(self) -> None: ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def forget(self) -> None: ...

    async def update(self, info: Mapping[str, Any], label: str) -> None:
        path = Path(info["path"])
        self.sizes.append(path.stat().st_size)
        try:
            found = self.kept.take(
                path, info["checksum"], base=info["base"], keep=info["keep"], device=torch.device("cpu")
            )
        except ValueError as error:  # as what fails in its processes comes
            raise RuntimeError(f"vLLM failed: {error}") from error
        self.holds = {name: each.clone() for name, each in found.items()}
        self.version = int(label)

    async def sleep(self) -> None: ...

    async def wake(self) -> None: ...

    async def state(self) -> int | None:
        return self.version

    async def close(self) -> None: ...


class World:
    """A trainer's weights, and an engine that gets them."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
        self.store, self.line, self.folder = DeltaWeights(torch.bfloat16), Vllm(), folder
        embedding = torch.ones(EMBEDDING)
        self.weights = {"embedding": embedding, "head": embedding, "norm": torch.ones(8)}  # the head is tied
        self.engine = self.beside(self.line, tokenizer)
        self.publish(0)

    def beside(self, line: Vllm, tokenizer: PreTrainedTokenizerBase) -> ServedEngine:
        engine = ServedEngine(line, DeltaParcels(self.folder), tokenizer, self.store)
        engine.abilities = ALL
        return engine

    def publish(self, version: int) -> None:
        self.weights["embedding"][version] = version + 2.0
        self.weights["norm"] += 1
        self.store.publish(version, self.weights)

    def files(self) -> list[Path]:
        return [path for path in self.folder.rglob("*") if path.is_file()]

    def check(self, version: int) -> None:
        """vLLM holds what was published, and nothing lies about."""
        wanted = self.store.fetch(version)
        assert self.line.version == version
        assert {name: each.tolist() for name, each in self.line.holds.items()} == {
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


def test_only_the_first_time_all_is_sent(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        first = await world.engine.load(0)
        assert first == {"weights/bytes": world.line.sizes[0], "weights/whole": 1.0}
        world.check(0)
        for version in (1, 2, 5):
            world.publish(version)
            figures = await world.engine.load(version)
            assert figures == {"weights/bytes": world.line.sizes[-1], "weights/whole": 0.0}
            world.check(version)
            assert await world.engine.checksum() == checksum(world.store.fetch(version))

    run(world, play)
    whole, *deltas = world.line.sizes
    assert whole > 2 * 2 * EMBEDDING
    assert max(deltas) < 1000
    assert not caplog.records


def test_what_has_not_changed_is_sent_too(world: World) -> None:
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
    world.line.restart()


def restarted_unseen(world: World) -> None:
    world.line.restart()
    world.line.version = world.engine._version or 0


def spoilt(world: World) -> None:
    for each in world.line.kept._tensors.values():
        each += 1


def updated_by_another(world: World) -> None:
    world.line.version = 77


@pytest.mark.parametrize(
    ("happens", "words"),
    [
        (missed, "what has changed since version 4 is not known"),
        (restarted, "vLLM holds version 0, not 4"),
        (restarted_unseen, "kept are none"),
        (spoilt, "the weights have the sum"),
        (updated_by_another, "vLLM holds version 77, not 4"),
    ],
)
def test_where_a_delta_cannot_do_all_is_sent(
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
    assert "weights of version 6 are sent whole" in record.getMessage()
    assert words in record.getMessage()


def test_an_engine_that_cannot_be_reached_says_so_and_gets_all_later(world: World) -> None:
    async def play() -> None:
        await world.engine.load(0)
        alive = world.line.update

        async def dead(info: Mapping[str, Any], label: str) -> None:
            raise RuntimeError("is dead")

        world.line.update = dead  # type: ignore[method-assign]
        world.publish(1)
        with pytest.raises(RuntimeError, match="is dead"):
            await world.engine.load(1)
        assert world.files() == []
        world.line.update = alive  # type: ignore[method-assign]
        figures = await world.engine.load(1)
        assert figures["weights/whole"] == 1.0
        world.check(1)

    run(world, play)


def test_others_can_send_deltas_if_they_give_the_sum(world: World) -> None:
    patch = Patch("norm", torch.tensor([3]), torch.tensor([9.0]))

    async def play() -> None:
        with pytest.raises(ValueError, match="what it began with cannot be read from here"):
            await world.engine.begin(1, base=0)
        await world.engine.load(0)
        changed = {name: each.clone() for name, each in world.store.fetch(0).items()}
        changed["norm"][3] = 9.0
        update = await world.engine.begin(1, base=0)
        await update.patch([patch])
        await update.commit(checksum(changed))
        assert world.line.holds["norm"].tolist() == changed["norm"].tolist()
        assert await world.engine.checksum() == checksum(changed)
        update = await world.engine.begin(2, base=1)
        await update.patch([patch])
        with pytest.raises(ValueError, match="give the sum of all of them"):
            await update.commit()

    run(world, play)


def test_a_fleet_adds_up_what_was_sent(world: World, tokenizer: PreTrainedTokenizerBase) -> None:
    async def play() -> None:
        other = Vllm()
        fleet = Fleet([world.engine, world.beside(other, tokenizer)])
        whole = await fleet.load(0)
        assert whole["weights/whole"] == 2.0
        other.restart()
        other.version = 3
        world.publish(1)
        figures = await fleet.load(1)
        assert figures == {"weights/bytes": world.line.sizes[-1] + other.sizes[-1], "weights/whole": 1.0}
        await fleet.close()

    run(world, play)
