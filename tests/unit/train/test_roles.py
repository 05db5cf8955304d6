"""Two models that learn side by side, held to the same two learning alone."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from dojang.algos.m2po import M2poConfig
from dojang.errors import TrainingError
from dojang.protocols import Trainer
from dojang.train.config import TrainConfig
from dojang.train.roles import Roles
from dojang.train.torch import TorchTrainer
from dojang.types import Group, Sample
from dojang.weights.memory import MemoryWeights

RATES = {"coder": 1e-2, "tester": 3e-3}
REWARDS = {"coder": (1.0, -0.5, 0.25), "tester": (-1.0, 0.5)}
Cast = Callable[[], tuple[dict[str, TorchTrainer], dict[str, PreTrainedModel], dict[str, MemoryWeights]]]


@pytest.fixture
def cast(micro_model: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase) -> Cast:
    """A coder and a tester of different weights and learning rates."""

    def make() -> tuple[dict[str, TorchTrainer], dict[str, PreTrainedModel], dict[str, MemoryWeights]]:
        models = {role: micro_model(torch.float64, seed=seed) for seed, role in enumerate(RATES)}
        stores = {role: MemoryWeights(torch.float64) for role in RATES}
        trainers = {
            role: TorchTrainer(
                models[role],
                None,
                tokenizer,
                M2poConfig().make(9),
                stores[role],
                TrainConfig(lr=rate),
                total_updates=4,
                longest=9,
                temperature=1.0,
                compute=torch.float64,
            )
            for role, rate in RATES.items()
        }
        return trainers, models, stores

    return make


@pytest.fixture
def groups(make_sample: Callable[..., Sample], make_group: Callable[..., Group]) -> list[Group]:
    """The first teaches both roles, the second only the coder."""

    def samples(role: str, factor: float) -> list[Sample]:
        return [
            make_sample(prompt=(9, 8, len(role)), answer=(20 + at, 30, 40 + at), role=role, advantage=factor * each)
            for at, each in enumerate(REWARDS[role])
        ]

    first, second = (samples("coder", 1.0), samples("tester", 1.0)), (samples("coder", 0.5), samples("tester", 0.0))
    return [replace(make_group(), samples=(*coder, *tester)) for coder, tester in (first, second)]


def parameters(model: PreTrainedModel) -> list[torch.Tensor]:
    return [each.detach().clone() for each in model.parameters()]


def same(first: PreTrainedModel, second: PreTrainedModel) -> bool:
    return all(torch.equal(a, b) for a, b in zip(parameters(first), parameters(second), strict=True))


async def learn(trainer: Trainer, groups: Sequence[Group]) -> dict[str, float]:
    return {**await trainer.forward_backward(groups), **await trainer.optim_step()}


def test_each_learns_what_it_would_alone(cast: Cast, groups: list[Group]) -> None:
    trainers, together, _ = cast()
    both: Trainer = Roles(trainers)
    found = asyncio.run(learn(both, groups))
    separate, alone, _ = cast()
    coder = asyncio.run(learn(separate["coder"], [group.of("coder") for group in groups]))
    tester = asyncio.run(learn(separate["tester"], [groups[0].of("tester")]))
    assert found == {**coder, **{f"tester/{name}": value for name, value in tester.items()}}
    assert found["actor/lr"] == 1e-2
    assert found["tester/actor/lr"] == 3e-3
    assert all(same(together[role], alone[role]) for role in RATES)


def test_who_has_nothing_to_learn_stays_and_keeps_its_version(cast: Cast, groups: list[Group]) -> None:
    trainers, models, stores = cast()
    both, before = Roles(trainers), parameters(models["tester"])
    figures = asyncio.run(learn(both, groups[1:]))
    assert not any(name.startswith("tester/") for name in figures)
    assert all(torch.equal(a, b) for a, b in zip(before, parameters(models["tester"]), strict=True))
    assert asyncio.run(both.publish()) == 1
    assert (stores["coder"].newest(), stores["tester"].newest()) == (1, 0)


def test_scores_are_of_the_model_that_wrote_a_sample(cast: Cast, groups: list[Group]) -> None:
    trainers, _, _ = cast()
    samples = list(groups[0].samples)[::-1]
    found = asyncio.run(Roles(trainers).score(samples))
    for sample, scores in zip(samples, found, strict=True):
        assert scores == pytest.approx(asyncio.run(trainers[sample.role].score([sample]))[0], abs=1e-12)


def test_a_checkpoint_holds_both_and_goes_on_where_they_were(cast: Cast, groups: list[Group], tmp_path: Path) -> None:
    trainers, straight, _ = cast()
    both = Roles(trainers)
    asyncio.run(learn(both, groups))
    asyncio.run(both.save(tmp_path))
    asyncio.run(learn(both, groups))
    others, resumed, stores = cast()
    again = Roles(others)
    asyncio.run(again.restore(tmp_path))
    asyncio.run(learn(again, groups))
    assert all(same(straight[role], resumed[role]) for role in RATES)
    assert asyncio.run(again.publish()) == 2
    assert stores["tester"].newest() == 2
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "tester", dtype=torch.float64)
    assert not same(saved, AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64))


def test_what_goes_wrong_with_the_tester_is_said_of_the_tester(cast: Cast, groups: list[Group]) -> None:
    trainers, models, _ = cast()
    with torch.no_grad():
        next(iter(models["tester"].parameters())).fill_(float("nan"))
    with pytest.raises(TrainingError, match=r"the tester: .*became NaN"):
        asyncio.run(Roles(trainers).forward_backward(groups))
