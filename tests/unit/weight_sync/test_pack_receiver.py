"""Packs applied to engines: a torch engine, and a fake one; full weights whenever a pack does not fit."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TypeVar, cast

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dojang.core.checksum import bits, checksum
from dojang.core.lazy_weights import LazyWeights, joined
from dojang.engine.torch_engine import TorchEngine
from dojang.protocols import Factors, Patch, ServingEngine
from dojang.types import Sampling
from dojang.weight_sync.pack import Pack, decode, encode
from dojang.weight_sync.pack_receiver import LoraBase, PackReceiver, apply_pack
from dojang.weight_sync.versions import WeightVersions
from weight_soak import DAMAGES, DictEngine, damage

T = TypeVar("T")
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
PROMPT = tuple(range(10, 22))


def weights(value: float, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return {"a": torch.full((40, 30), value).to(dtype), "b": torch.full((30,), value).to(dtype)}


def as_engine(engine: DictEngine) -> ServingEngine:
    return cast(ServingEngine, engine)


class Sender:
    """A trainer's store behind a connection that may damage what it sends."""

    def __init__(self, dtype: torch.dtype, **settings: int) -> None:
        self.store, self.sent = WeightVersions(dtype, **settings), list[Pack]()
        self.spoil: Callable[[Pack], bytes] = encode
        self._draw = torch.Generator().manual_seed(0)
        self._weights = weights(1.0)

    def publish(self, version: int, share: float = 0.05) -> None:
        for each in self._weights.values():
            chosen = torch.rand(each.shape, generator=self._draw) < share
            each.copy_(torch.where(chosen, torch.randn(each.shape, generator=self._draw), each))
        self.store.publish(version, self._weights)

    def publish_factors(self, version: int, base: Mapping[str, Tensor]) -> None:
        pair = torch.randn(40, 2, generator=self._draw), torch.randn(2, 30, generator=self._draw)
        self.store.publish(version, base, {"a": pair})

    async def load(self, receiver: PackReceiver, version: int) -> None:
        async def fetch(base: int | None, merge: bool) -> bytes:
            pack = self.store.pack(version, base, merge=merge)
            self.sent.append(pack)
            return self.spoil(pack)

        await receiver.load(version, fetch)

    def kinds(self) -> list[str]:
        kinds = [each.kind for each in self.sent]
        self.sent.clear()
        return kinds


def holds(engine: DictEngine, store: WeightVersions, version: int) -> bool:
    wanted = store.fetch(version)
    same = all(torch.equal(bits(each), bits(engine.weights[name])) for name, each in wanted.items())
    return same and engine.version == version and not engine.dirty


@pytest.mark.parametrize("dtype", DTYPES)
def test_full_weights_come_first_and_deltas_afterwards(dtype: torch.dtype) -> None:
    sender, engine = Sender(dtype, keep=2, deltas=4), DictEngine(weights(0.0, dtype))
    receiver = PackReceiver(as_engine(engine))

    async def play() -> None:
        for version, kinds in ((0, ["full"]), (1, ["delta"]), (2, ["delta"]), (5, ["delta"])):
            sender.publish(version)
            await sender.load(receiver, version)
            assert holds(engine, sender.store, version)
            assert sender.kinds() == kinds
        for version in (6, 7, 8):  # a chain
            sender.publish(version)
        await sender.load(receiver, 8)
        assert holds(engine, sender.store, 8)
        assert sender.kinds() == ["delta"]
        for version in range(9, 15):  # more than are kept
            sender.publish(version)
        await sender.load(receiver, 14)
        assert holds(engine, sender.store, 14)
        assert sender.kinds() == ["full"]

    asyncio.run(play())


def test_factors_alone_follow_the_base_weights() -> None:
    sender, engine = Sender(torch.bfloat16, keep=3), DictEngine(weights(0.0, torch.bfloat16))
    receiver = PackReceiver(as_engine(engine))

    async def play() -> None:
        for version in range(4):
            sender.publish_factors(version, weights(1.0) if version == 0 else {})
            await sender.load(receiver, version)
            assert holds(engine, sender.store, version)
        assert sender.kinds() == ["full", "factors", "factors", "factors"]
        sender.publish_factors(4, weights(2.0))  # other base weights
        await sender.load(receiver, 4)
        assert holds(engine, sender.store, 4)
        assert sender.kinds() == ["full"]

    asyncio.run(play())


def test_factors_that_merge_to_other_weights_here_come_merged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sender, engine = Sender(torch.float32, keep=2, deltas=2), DictEngine(weights(0.0, torch.float32))
    receiver = PackReceiver(as_engine(engine))

    def other(tensors: Mapping[str, Tensor], factors: Factors, *, device: torch.device | None) -> LazyWeights:
        changed = {name: tensors[name] + (b @ a) * (1 + 1e-6) for name, (b, a) in factors.items()}
        return joined(tensors, changed)

    monkeypatch.setattr("dojang.weight_sync.pack_receiver.merged_weights", other)

    async def play() -> None:
        sender.publish_factors(0, weights(1.0))
        await sender.load(receiver, 0)
        assert [(each.kind, bool(each.factors)) for each in sender.sent] == [("full", True), ("full", False)]
        assert holds(engine, sender.store, 0)
        sender.kinds()
        sender.publish_factors(1, {})
        await sender.load(receiver, 1)
        assert holds(engine, sender.store, 1)
        assert sender.kinds() == ["delta"]

    asyncio.run(play())
    assert "after merging" in caplog.text


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_packs_are_never_applied(kind: str) -> None:
    """The engine keeps its weights, and full weights are fetched."""
    sender, engine = Sender(torch.bfloat16, keep=2, deltas=2), DictEngine(weights(0.0, torch.bfloat16))
    receiver, draw = PackReceiver(as_engine(engine)), random.Random(1)

    async def play() -> None:
        sender.publish(0)
        await sender.load(receiver, 0)
        for version in range(1, 6):
            sender.publish(version)
            before = checksum(engine.weights)
            sender.spoil = lambda pack: damage(encode(pack), kind, draw)
            with pytest.raises(ValueError, match="a weight pack"):
                await sender.load(receiver, version)
            assert (checksum(engine.weights), engine.dirty) == (before, False)
            sender.spoil = lambda pack: damage(encode(pack), kind, draw) if pack.kind == "delta" else encode(pack)
            sender.kinds()
            await sender.load(receiver, version)
            assert sender.kinds() == ["delta", "full"]
            assert holds(engine, sender.store, version)

    asyncio.run(play())


@pytest.mark.parametrize(
    ("change", "dirty"),
    [
        (lambda pack: replace(pack, base_checksum="0123456789abcdef"), False),
        (lambda pack: replace(pack, base=(pack.base or 0) + 9), False),
        (lambda pack: replace(pack, patches=[Patch("a", torch.tensor([1200]), torch.ones(1))]), False),
        (lambda pack: replace(pack, patches=[Patch("z", torch.tensor([0]), torch.ones(1))]), False),
        (lambda pack: replace(pack, version=77), False),
        (lambda pack: replace(pack, checksum="0123456789abcdef"), True),
        (
            lambda pack: replace(pack, patches=[*pack.patches, Patch("a", torch.tensor([0]), torch.full((1,), 9.0))]),
            True,
        ),
        (lambda pack: replace(pack, patches=[]), True),
    ],
)
def test_wrong_deltas_are_followed_by_full_weights(
    change: Callable[[Pack], Pack], dirty: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Deltas with a digest that fits: the sender made them wrong."""
    sender, engine = Sender(torch.float32, deltas=3), DictEngine(weights(0.0, torch.float32))
    receiver = PackReceiver(as_engine(engine))

    async def play() -> None:
        sender.publish(0)
        await sender.load(receiver, 0)
        sender.publish(1)
        before = checksum(engine.weights)
        pack = change(sender.store.pack(1, 0))
        if pack.version == 1:
            with pytest.raises(ValueError):  # noqa: PT011  # by several parts, with their own words
                await apply_pack(as_engine(engine), decode(encode(pack)))
            assert engine.dirty == dirty
            assert dirty or checksum(engine.weights) == before
        sender.spoil = lambda pack: encode(change(pack) if pack.kind == "delta" else pack)
        await sender.load(receiver, 1)
        assert holds(engine, sender.store, 1)
        assert sender.kinds()[-1] == "full"
        sender.spoil = encode
        sender.publish(2)
        await sender.load(receiver, 2)
        assert holds(engine, sender.store, 2)
        assert sender.kinds() == ["delta"]

    asyncio.run(play())
    assert "fetching the full weights of version 1" in caplog.text


def test_engine_that_was_changed_by_others_gets_full_weights() -> None:
    sender, engine = Sender(torch.float32, deltas=3), DictEngine(weights(0.0, torch.float32))
    receiver = PackReceiver(as_engine(engine))

    async def play() -> None:
        sender.publish(0)
        await sender.load(receiver, 0)
        sender.publish(1)
        engine.weights["b"][3] += 1
        await sender.load(receiver, 1)
        assert holds(engine, sender.store, 1)
        assert sender.kinds() == ["full", "delta", "full"]

    asyncio.run(play())


def test_factors_without_their_base_are_refused() -> None:
    sender, engine = Sender(torch.float32), DictEngine(weights(0.0, torch.float32))

    async def play() -> None:
        sender.publish_factors(0, weights(1.0))
        first = sender.store.pack(0)
        sender.publish_factors(1, {})
        pack = sender.store.pack(1, 0)
        assert pack.kind == "factors"
        with pytest.raises(ValueError, match="held are none"):
            await apply_pack(as_engine(engine), pack)
        base = LoraBase()
        await apply_pack(as_engine(engine), first, base)
        with pytest.raises(ValueError, match="belong to base weights"):
            await apply_pack(as_engine(engine), replace(pack, base_checksum="0123456789abcdef"), base)
        pair = torch.ones(3, 1), torch.ones(1, 3)
        with pytest.raises(ValueError, match="do not fit a weight called b"):
            await apply_pack(as_engine(engine), replace(pack, factors={"b": pair}), base)
        assert engine.version == 0
        await apply_pack(as_engine(engine), pack, base)
        assert holds(engine, sender.store, 1)

    asyncio.run(play())


def run(engine: TorchEngine, play: Callable[[], Awaitable[T]]) -> T:
    async def whole() -> T:
        try:
            return await asyncio.wait_for(play(), 60)
        finally:
            await engine.close()

    return asyncio.run(whole())


def test_torch_engine_takes_packs_while_it_samples(
    micro_model: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase
) -> None:
    store = WeightVersions(torch.float32, 2, deltas=2)
    engine = TorchEngine(micro_model(torch.float32), tokenizer, store, max_num_seqs=4)
    receiver = PackReceiver(engine)
    trained = {name: each.detach().clone() for name, each in micro_model(torch.float32, seed=3).named_parameters()}

    async def play() -> None:
        hot = Sampling(temperature=5.0, max_tokens=300, seed=1)
        under_way = asyncio.create_task(engine.generate(PROMPT, 2, hot))
        for version in (1, 2, 3):
            trained["model.norm.weight"][version] += 0.5
            store.publish(version, trained)

            async def fetch(base: int | None, merge: bool, version: int = version) -> bytes:
                return encode(store.pack(version, base, merge=merge))

            figures = await receiver.load(version, fetch)
            assert figures["weights/whole"] == (version == 1)
            assert await engine.checksum() == store.checksum(version)
        for completion in await under_way:
            assert completion.version <= 3
        [completion] = await engine.generate(PROMPT, 1, Sampling(temperature=1.0, max_tokens=4))
        assert completion.version == 3

    run(engine, play)
