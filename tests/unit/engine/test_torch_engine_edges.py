"""TorchEngine edge cases: failed updates, unusual requests, close."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from run_engine import run
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dojang.core.errors import ModelError
from dojang.engine.torch_engine import TorchEngine
from dojang.types import Completion, Sampling
from dojang.weight_sync.versions import WeightVersions

Make = Callable[..., TorchEngine]
PROMPT = tuple(range(10, 22))
WARM = Sampling(temperature=1.0, max_tokens=8, seed=3)
HOT = Sampling(temperature=5.0, max_tokens=300, seed=3)
"""Temperature high enough that no sequence stops early."""


@pytest.fixture
def make(micro_model: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase) -> Make:
    def one(**options: float) -> TorchEngine:
        weights = WeightVersions(torch.float64)
        weights.publish(7, dict(micro_model(torch.float64, seed=7).named_parameters()))
        return TorchEngine(micro_model(torch.float64), tokenizer, weights, max_num_seqs=4, **options)  # type: ignore[arg-type]

    return one


async def begun(engine: TorchEngine, sampling: Sampling = HOT) -> "asyncio.Task[list[Completion]]":
    task = asyncio.create_task(engine.generate(PROMPT, 2, sampling))
    while not (await engine.state()).running:
        await asyncio.sleep(0.001)
    return task


def test_request_after_a_failed_update_samples_nothing(make: Make) -> None:
    async def play(engine: TorchEngine) -> None:
        await begun(engine)
        update = await engine.begin(1, base=0)
        commit = asyncio.create_task(update.commit("0" * 16))
        await asyncio.sleep(0)  # it is on its way to the thread, and the engine is not dirty yet
        late = asyncio.create_task(engine.generate(PROMPT, 1, WARM))
        with pytest.raises(ValueError, match="checksum is"):
            await commit
        with pytest.raises(RuntimeError, match="until full weights are loaded"):
            await late

    run(make(), play)


def test_incomplete_load_does_not_block_the_next(make: Make) -> None:
    async def play(engine: TorchEngine) -> int:
        whole = dict(engine._weights.fetch(7))
        engine._weights.publish(8, {name: whole[name] for name in list(whole)[1:]})
        with pytest.raises(ValueError, match="must send every weight"):
            await engine.load(8)
        engine._weights.publish(9, whole)
        await engine.load(9)
        return (await engine.state()).version

    assert run(make(), play) == 9


def test_new_weights_prefill_the_same_prompt_again(make: Make) -> None:
    async def play(engine: TorchEngine) -> list[Completion]:
        under_way = await begun(engine, replace(HOT, max_tokens=400))
        await engine.generate(PROMPT[:5], 4, WARM)
        await engine.load(7)
        under_way.cancel()
        return await engine.generate(PROMPT[:5], 1, WARM)

    async def fresh(engine: TorchEngine) -> list[Completion]:
        await engine.load(7)
        return await engine.generate(PROMPT[:5], 1, WARM)

    assert [each.tokens for each in run(make(), play)] == [each.tokens for each in run(make(), fresh)]


def test_request_that_never_fits_is_rejected_alone(make: Make) -> None:
    async def play(engine: TorchEngine) -> int:
        under_way = await begun(engine, replace(HOT, max_tokens=50))
        with pytest.raises(ModelError, match=r"raise rollout\.engine\.kv_cache_gb"):
            await engine.generate(PROMPT, 1, replace(WARM, max_tokens=400))
        return len(await under_way)

    assert run(make(kv_cache_gb=2**-13), play) == 2


def test_max_tokens_may_exceed_the_context(make: Make) -> None:
    [done] = run(make(), lambda engine: engine.generate(PROMPT, 1, replace(HOT, max_tokens=10**13)))
    assert len(done.tokens) <= 500


def test_close_resolves_all_requests(make: Make) -> None:
    async def play() -> list[object]:
        engine = make()
        await begun(engine)
        asked = [
            asyncio.create_task(engine.generate(PROMPT, 1, WARM)),
            asyncio.create_task(engine.checksum()),
        ]
        await asyncio.sleep(0)
        await engine.close()
        return await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 20)

    for each in asyncio.run(play()):
        assert isinstance(each, str | RuntimeError | asyncio.CancelledError) or each is None


def test_underflowing_temperature_is_greedy(make: Make) -> None:
    tiny, none = (
        run(make(), lambda engine, t=t: engine.generate(PROMPT, 1, replace(WARM, temperature=t)))  # type: ignore[misc]
        for t in (1e-300, 0.0)
    )
    assert tiny[0].tokens == none[0].tokens


def test_empty_stop_string_is_rejected() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        replace(WARM, stop=("a", ""))
