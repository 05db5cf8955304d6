"""Slots are attended to in groups: sequences of similar length stay together, without changing results."""

import asyncio
from collections.abc import Callable
from random import Random

import pytest
import torch
from run_engine import run
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dojang.engine import attention
from dojang.engine.kv_cache import KvCache
from dojang.engine.torch_engine import TorchEngine
from dojang.types import Completion, Sampling
from dojang.weight_sync.versions import WeightVersions

Runs = list[tuple[slice, int]]


def of(cache: KvCache, lengths: list[int]) -> Runs:
    return attention._slot_groups(cache, [each - 1 for each in lengths])


@pytest.fixture
def cache(micro_model: Callable[..., PreTrainedModel]) -> KvCache:
    shape = attention.Shape.of(micro_model().config)
    cache = KvCache(shape, torch.float32, torch.device("cpu"), max_slots=64, budget=None)
    assert cache.reserve(400, 0)
    return cache


def test_each_slot_group_covers_its_longest_sequence(cache: KvCache) -> None:
    assert of(cache, [300] + [200] * 15 + [70] * 10) == [(slice(0, 16), 320), (slice(16, 26), 96)]


def test_similar_slot_groups_are_merged(cache: KvCache) -> None:
    assert of(cache, [64] * 16 + [32] * 15) == [(slice(0, 31), 64)]
    assert of(cache, [64] * 16 + [32] * 16) == [(slice(0, 16), 64), (slice(16, 32), 32)]
    assert of(cache, [5]) == [(slice(0, 1), 32)]
    assert of(cache, [400]) == [(slice(0, 1), 416)]
    assert of(cache, [cache.length]) == [(slice(0, 1), cache.length)]


def test_ragged_sequences_in_several_slot_groups_match_single_requests(
    micro_model: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(3)
    asks = [
        (tuple(random.choices(range(5, 200), k=random.choice((3, 30)))), Sampling(5.0, size, seed=1, prompt_index=at))
        for at, size in enumerate(random.choices((2, 20, 60, 200), k=120))
    ]
    looked: list[tuple[Runs, list[int]]] = []

    def noted(cache: KvCache, position_N: list[int]) -> Runs:
        looked.append((runs := found(cache, position_N), list(position_N)))
        return runs

    found = attention._slot_groups
    monkeypatch.setattr(attention, "_slot_groups", noted)

    async def together(engine: TorchEngine) -> list[list[Completion]]:
        return await asyncio.gather(*(engine.generate(prompt, 1, sampling) for prompt, sampling in asks))

    async def in_turn(engine: TorchEngine) -> list[list[Completion]]:
        return [await engine.generate(prompt, 1, sampling) for prompt, sampling in asks[::4]]  # one at a time is slow

    def engine(max_num_seqs: int) -> TorchEngine:
        return TorchEngine(
            micro_model(torch.float64), tokenizer, WeightVersions(torch.float64), max_num_seqs=max_num_seqs
        )

    mine = run(engine(48), together)
    ragged = [each for each in looked if len(each[0]) > 1]
    assert len(ragged) > 20
    for runs, positions in ragged:  # later groups are not longer, except for sequences that just entered
        assert max(positions[runs[0][0]]) >= max(positions[runs[-1][0]])
    assert [each.tokens for (each,) in mine[::4]] == [each.tokens for (each,) in run(engine(1), in_turn)]
