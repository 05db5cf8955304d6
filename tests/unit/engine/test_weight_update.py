"""Weight updates: full and patched, validated before they are applied, with checksums."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dojang.core.checksum import checksum
from dojang.engine.generate_engine import GenerateEngine
from dojang.engine.torch_engine import TorchEngine
from dojang.engine.weight_update import apply_update
from dojang.protocols import Patch
from dojang.types import Metrics, Sampling
from dojang.weight_sync.versions import WeightVersions

T = TypeVar("T")
PROMPT = tuple(range(10, 22))
WARM = Sampling(temperature=1.0, max_tokens=8, seed=3)


@pytest.fixture
def engine(micro_model: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase) -> TorchEngine:
    weights = WeightVersions(torch.float32)
    weights.publish(3, dict(micro_model(torch.float32, seed=3).named_parameters()))
    return TorchEngine(micro_model(torch.float32), tokenizer, weights, max_num_seqs=4)


def run(engine: TorchEngine, play: Callable[[], Awaitable[T]]) -> T:
    async def whole() -> T:
        try:
            return await asyncio.wait_for(play(), 60)
        finally:
            await engine.close()

    return asyncio.run(whole())


def test_engine_checksum_is_that_of_the_loaded_weights(
    engine: TorchEngine, micro_model: Callable[..., PreTrainedModel]
) -> None:
    async def play() -> tuple[str, str]:
        before = await engine.checksum()
        await engine.load(3)
        return before, await engine.checksum()

    sums = [checksum(dict(micro_model(torch.float32, seed=seed).named_parameters())) for seed in (0, 3)]
    assert list(run(engine, play)) == sums


def test_patch_equals_full_update(engine: TorchEngine, micro_model: Callable[..., PreTrainedModel]) -> None:
    changed = {name: weight.detach().clone() for name, weight in micro_model(torch.float32).named_parameters()}
    patches = []
    for name in ("model.layers.0.self_attn.k_proj.weight", "model.embed_tokens.weight", "model.norm.weight"):
        index_N = torch.tensor([0, changed[name].numel() - 1, 5])
        value_N = torch.tensor([0.5, -0.25, 2.0])
        changed[name].view(-1)[index_N] = value_N
        patches.append(Patch(name, index_N.int(), value_N))

    async def play() -> tuple[str, int, int]:
        update = await engine.begin(1, base=0)
        await update.patch(patches)
        before = await engine.generate(PROMPT, 1, WARM)
        await update.commit(checksum(changed))
        after = await engine.generate(PROMPT, 1, WARM)
        return await engine.checksum(), before[0].version, after[0].version

    assert run(engine, play) == (checksum(changed), 0, 1)


def test_invalid_updates_are_rejected_before_any_change(
    engine: TorchEngine, micro_model: Callable[..., PreTrainedModel]
) -> None:
    name = "model.norm.weight"
    size = micro_model(torch.float32).get_parameter(name).numel()

    async def play() -> None:
        before = await engine.checksum()
        update = await engine.begin(1)
        with pytest.raises(ValueError, match="an update to version 1 is in progress"):
            await engine.begin(2)
        with pytest.raises(ValueError, match="has no weight called strange"):
            await update.send({"strange": torch.zeros(1)})
        with pytest.raises(ValueError, match=rf"shape \[3\]; the engine has \[{size}\]"):
            await update.send({name: torch.zeros(3)})
        with pytest.raises(ValueError, match="patches need an update with a base version"):
            await update.patch([Patch(name, torch.tensor([0]), torch.tensor([0.0]))])
        await update.send({name: torch.zeros(size)})
        with pytest.raises(ValueError, match="must send every weight"):
            await update.commit()
        await update.give_up()
        with pytest.raises(ValueError, match="has already ended"):
            await update.commit()
        with pytest.raises(ValueError, match="it holds version 0; send full weights"):
            await engine.begin(6, base=5)
        patch = await engine.begin(1, base=0)
        with pytest.raises(ValueError, match="an index outside"):
            await patch.patch([Patch(name, torch.tensor([size]), torch.tensor([0.0]))])
        with pytest.raises(ValueError, match="indices and"):
            await patch.patch([Patch(name, torch.tensor([0]), torch.tensor([0.0, 1.0]))])
        await patch.give_up()
        assert await engine.checksum() == before
        assert (await engine.state()).dirty == ""

    run(engine, play)


def test_engine_with_failed_update_samples_nothing(engine: TorchEngine) -> None:
    async def play() -> None:
        hot = Sampling(temperature=5.0, max_tokens=4000, seed=1)
        under_way = asyncio.create_task(engine.generate(PROMPT, 2, hot))
        while not (await engine.state()).running:
            await asyncio.sleep(0.001)
        update = await engine.begin(1, base=0)
        await update.patch([Patch("model.norm.weight", torch.tensor([0]), torch.tensor([9.0]))])
        with pytest.raises(ValueError, match="the checksum is"):
            await update.commit("0123456789abcdef")
        with pytest.raises(RuntimeError, match="failed"):
            await under_way
        assert "version 1 failed" in (await engine.state()).dirty
        with pytest.raises(RuntimeError, match="until full weights are loaded"):
            await engine.generate(PROMPT, 1, WARM)
        with pytest.raises(ValueError, match="send full weights"):
            await engine.begin(2, base=0)
        await engine.load(3)
        [completion] = await engine.generate(PROMPT, 1, WARM)
        state = await engine.state()
        assert (completion.version, state.version, state.dirty, state.running, state.waiting) == (3, 3, "", 0, 0)

    run(engine, play)


@pytest.mark.parametrize("kind", [TorchEngine, GenerateEngine])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_engine_loads_deltas_and_full_weights_when_they_do_not_fit(
    micro_model: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    caplog: pytest.LogCaptureFixture,
    kind: type[TorchEngine] | type[GenerateEngine],
    dtype: torch.dtype,
) -> None:
    store = WeightVersions(dtype, deltas=2)
    engine = kind(micro_model(dtype), tokenizer, store, max_num_seqs=4, weight_sync="delta")
    held = engine._scheduler.weights if isinstance(engine, TorchEngine) else engine._parameters
    trained = {name: each.detach().clone() for name, each in micro_model(dtype, seed=3).named_parameters()}

    async def load(version: int, *missed: int) -> float:
        for each in (*missed, version):
            trained["model.embed_tokens.weight"][each, :3] += 1.0
            trained["model.norm.weight"] *= 1.5
            store.publish(each, trained)
        figures = await engine.load(version)
        assert checksum(held) == store.checksum(version)
        assert figures is not None
        return figures["weights/whole"]

    async def play() -> None:
        assert await load(0) == 1.0
        assert [await load(1), await load(2), await load(4, 3)] == [0.0, 0.0, 0.0]
        assert not caplog.records
        assert await load(7, 5, 6) == 1.0
        assert "the changes since version 4 are not available" in caplog.text
        with torch.inference_mode():
            held["model.layers.0.self_attn.k_proj.weight"][0, 0] += 1
        assert await load(8) == 1.0
        assert "sending the full weights of version 8 instead of a delta: after the update" in caplog.text
        assert await load(9) == 0.0
        [completion] = await engine.generate(PROMPT, 1, WARM)
        assert completion.version == 9
        await engine.close()

    asyncio.run(asyncio.wait_for(play(), 60))


def test_engine_sums_its_weights_again_after_an_update(engine: TorchEngine) -> None:
    async def play() -> None:
        first = await engine.checksum()
        assert await engine.checksum() == first
        update = await engine.begin(1, base=0)
        await update.patch([Patch("model.norm.weight", torch.tensor([0]), torch.tensor([9.0]))])
        await update.commit()
        second = await engine.checksum()
        assert second == checksum(engine._scheduler.weights) != first
        update = await engine.begin(2, base=1)
        with pytest.raises(ValueError, match="the checksum is"):
            await update.commit("0123456789abcdef")
        assert await engine.checksum() == second

    run(engine, play)


@pytest.mark.parametrize("make", [TorchEngine, GenerateEngine])
def test_a_load_reports_the_time_without_decoding(
    make: type[TorchEngine] | type[GenerateEngine],
    micro_model: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def slowly(*given: Any) -> None:
        time.sleep(0.1)
        apply_update(*given)

    monkeypatch.setattr(f"{make.__module__}.apply_update", slowly)
    weights = WeightVersions(torch.float32)
    weights.publish(3, dict(micro_model(torch.float32, seed=3).named_parameters()))
    engine = make(micro_model(torch.float32), tokenizer, weights, max_num_seqs=4)

    async def play() -> tuple[Metrics, float]:
        started = time.monotonic()
        figures = await engine.load(3)
        whole = time.monotonic() - started
        await engine.close()
        return figures, whole

    figures, whole = asyncio.run(play())
    assert 0.1 <= figures["timing_s/load_pause"] <= whole
