"""Values of single tokens that updates record, against a forward pass of each sample alone."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dojang.algos.grpo import GrpoConfig
from dojang.protocols import TokenValues
from dojang.trainer.config import TrainConfig
from dojang.trainer.thread_trainer import ThreadTrainer
from dojang.trainer.torch_trainer import TorchTrainer
from dojang.types import Group, Sample
from dojang.weight_sync.versions import WeightVersions

Make = Callable[..., tuple[TorchTrainer, PreTrainedModel]]
TEMPERATURE = 0.8


@pytest.fixture
def make(micro_model: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase) -> Make:
    def make(*, token_values: bool = True, max_tokens: int = 1000) -> tuple[TorchTrainer, PreTrainedModel]:
        model = micro_model(torch.float64)
        trainer = TorchTrainer(
            model,
            None,
            tokenizer,
            GrpoConfig().make(9),
            WeightVersions(torch.float64),
            TrainConfig(lr=1e-2, max_tokens_per_microbatch=max_tokens),
            total_updates=10,
            max_tokens=9,
            temperature=TEMPERATURE,
            compute=torch.float64,
            token_values=token_values,
        )
        return trainer, model

    return make


@pytest.fixture
def groups(make_sample: Callable[..., Sample], make_group: Callable[..., Group]) -> list[Group]:
    """Groups of different lengths; the second has no advantage, so it counts in metrics only."""

    def group(at: int, lengths: Sequence[int], scale: float) -> Group:
        samples = [
            make_sample(prompt=(9, 8, 7 + at), answer=range(20 + at, 20 + at + size), index=index, turn=index % 2)
            for index, size in enumerate(lengths)
        ]
        signed = (replace(each, advantage=scale * (-1.0) ** each.index) for each in samples)
        return replace(make_group(prompt_index=at), samples=tuple(signed))

    return [group(3, (4, 1, 9), 1.0), group(5, (2, 7), 0.0), group(6, (3,), -0.5)]


async def update(trainer: TorchTrainer | ThreadTrainer, groups: Sequence[Group]) -> dict[str, float]:
    return {**await trainer.forward_backward(groups), **await trainer.optim_step()}


def expected(model: PreTrainedModel, groups: Sequence[Group]) -> list[TokenValues]:
    found = []
    for group in groups:
        for sample in group.samples:
            with torch.no_grad():
                logits_TV = model(input_ids=torch.tensor(sample.tokens[None])).logits[0, :-1] / TEMPERATURE
            logp_TV, mask = logits_TV.log_softmax(-1), torch.tensor(sample.mask[1:])
            logp_T = logp_TV.gather(-1, torch.tensor(sample.tokens[1:])[:, None])[:, 0]
            entropy_T = -(logp_TV.exp() * logp_TV).sum(-1)
            key = (group.prompt_index, sample.index, sample.role, sample.turn)
            found.append(TokenValues(*key, logp_T[mask].numpy(), entropy_T[mask].numpy()))
    return found


def check(found: Sequence[TokenValues], wanted: Sequence[TokenValues]) -> None:
    assert len(found) == len(wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        assert (mine.prompt_index, mine.index, mine.role, mine.turn) == (
            *(theirs.prompt_index, theirs.index, theirs.role, theirs.turn),
        )
        assert mine.logprobs.dtype == mine.entropies.dtype == np.float32
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-5)
        assert mine.entropies == pytest.approx(theirs.entropies, abs=1e-5)


@pytest.mark.parametrize("max_tokens", [12, 1000])
def test_values_are_those_of_each_sample_alone(make: Make, groups: list[Group], max_tokens: int) -> None:
    trainer, model = make(max_tokens=max_tokens)
    wanted = expected(model, groups)
    asyncio.run(update(trainer, groups))
    check(asyncio.run(trainer.take_token_values()), wanted)
    assert asyncio.run(trainer.take_token_values()) == []


def test_the_first_pass_of_a_sample_counts(make: Make, groups: list[Group]) -> None:
    trainer, model = make()
    before = expected(model, groups[:1])
    asyncio.run(update(trainer, groups[:1]))
    between = expected(model, groups[2:])
    asyncio.run(update(trainer, groups[2:]))
    asyncio.run(update(trainer, groups))  # a second epoch: only the second group is new
    found = asyncio.run(trainer.take_token_values())
    check([each for each in found if each.prompt_index != 5], [*before, *between])
    assert [each.index for each in found if each.prompt_index == 5] == [0, 1]


def test_through_a_thread(make: Make, groups: list[Group]) -> None:
    trainer, model = make()
    wanted = expected(model, groups)

    async def both() -> Sequence[TokenValues]:
        threaded = ThreadTrainer(trainer, torch.device("cpu"))
        await update(threaded, groups)
        found = await threaded.take_token_values()
        await threaded.close()
        return found

    check(asyncio.run(both()), wanted)


def test_recording_changes_no_result_and_can_be_turned_off(make: Make, groups: list[Group]) -> None:
    (with_values, one), (without, other) = make(), make(token_values=False)
    for _ in range(2):
        assert asyncio.run(update(with_values, groups)) == asyncio.run(update(without, groups))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert asyncio.run(without.take_token_values()) == []
    assert without._recorder._parts == []
