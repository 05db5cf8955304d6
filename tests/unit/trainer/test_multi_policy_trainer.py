"""Two models that learn side by side, held to the same two learning alone."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from dojang.algos.m2po import M2poConfig
from dojang.core.errors import TrainingError
from dojang.protocols import Trainer
from dojang.trainer.config import TrainConfig
from dojang.trainer.multi_policy_trainer import MultiPolicyTrainer
from dojang.trainer.torch_trainer import TorchTrainer
from dojang.types import Group, Sample
from dojang.weight_sync.versions import WeightVersions

ALGORITHM = M2poConfig().make(9)
RATES = {"coder": 1e-2, "tester": 3e-3}
REWARDS = {"coder": (1.0, -0.5, 0.25), "tester": (-1.0, 0.5)}
Cast = Callable[[], tuple[dict[str, TorchTrainer], dict[str, PreTrainedModel], dict[str, WeightVersions]]]


@pytest.fixture
def cast(micro_model: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase) -> Cast:
    """A coder and a tester of different weights and learning rates."""

    def make() -> tuple[dict[str, TorchTrainer], dict[str, PreTrainedModel], dict[str, WeightVersions]]:
        models = {role: micro_model(torch.float64, seed=seed) for seed, role in enumerate(RATES)}
        stores = {role: WeightVersions(torch.float64) for role in RATES}
        trainers = {
            role: TorchTrainer(
                models[role],
                None,
                tokenizer,
                M2poConfig().make(9),
                stores[role],
                TrainConfig(lr=rate),
                total_updates=4,
                max_tokens=9,
                temperature=1.0,
                compute=torch.float64,
                token_values=True,
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


@pytest.mark.parametrize("concurrent", [False, True])
def test_each_learns_what_it_would_alone(cast: Cast, groups: list[Group], concurrent: bool) -> None:
    trainers, together, _ = cast()
    both: Trainer = MultiPolicyTrainer(trainers, ALGORITHM, concurrent=concurrent)
    found = asyncio.run(learn(both, groups))
    separate, alone, _ = cast()
    coder = asyncio.run(learn(separate["coder"], [group.of("coder") for group in groups]))
    tester = asyncio.run(learn(separate["tester"], [group.of("tester") for group in groups]))
    assert found == {**coder, **{f"tester/{name}": value for name, value in tester.items()}}
    assert found["actor/lr"] == 1e-2
    assert found["tester/actor/lr"] == 3e-3
    assert all(same(together[role], alone[role]) for role in RATES)


def test_a_role_without_a_gradient_publishes_the_same_version(cast: Cast, groups: list[Group]) -> None:
    trainers, models, stores = cast()
    both, before = MultiPolicyTrainer(trainers, ALGORITHM), parameters(models["tester"])
    figures = asyncio.run(learn(both, groups[1:]))
    assert not any(name.startswith("tester/") for name in figures)
    assert all(torch.equal(a, b) for a, b in zip(before, parameters(models["tester"]), strict=True))
    asyncio.run(both.publish(1))
    assert (stores["coder"].newest(), stores["tester"].newest()) == (1, 1)


@pytest.mark.parametrize("concurrent", [False, True])
def test_scores_are_of_the_model_that_wrote_a_sample(cast: Cast, groups: list[Group], concurrent: bool) -> None:
    trainers, _, _ = cast()
    samples = list(groups[0].samples)[::-1]
    found = asyncio.run(MultiPolicyTrainer(trainers, ALGORITHM, concurrent=concurrent).score(samples))
    for sample, scores in zip(samples, found, strict=True):
        assert scores == pytest.approx(asyncio.run(trainers[sample.role].score([sample]))[0], abs=1e-12)


@pytest.mark.parametrize("concurrent", [False, True])
def test_a_checkpoint_restores_both_roles(cast: Cast, groups: list[Group], tmp_path: Path, concurrent: bool) -> None:
    trainers, straight, _ = cast()
    both = MultiPolicyTrainer(trainers, ALGORITHM, concurrent=concurrent)
    asyncio.run(learn(both, groups))
    asyncio.run(both.save(tmp_path))
    asyncio.run(learn(both, groups))
    others, resumed, stores = cast()
    again = MultiPolicyTrainer(others, ALGORITHM, concurrent=concurrent)
    asyncio.run(again.restore(tmp_path))
    asyncio.run(learn(again, groups))
    assert all(same(straight[role], resumed[role]) for role in RATES)
    asyncio.run(again.publish(2))
    assert stores["tester"].newest() == 2
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "tester", dtype=torch.float64)
    assert not same(saved, AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64))


def test_errors_name_the_role(cast: Cast, groups: list[Group]) -> None:
    trainers, models, _ = cast()
    with torch.no_grad():
        next(iter(models["tester"].parameters())).fill_(float("nan"))
    with pytest.raises(TrainingError, match=r"the tester: .*became NaN"):
        asyncio.run(MultiPolicyTrainer(trainers, ALGORITHM).forward_backward(groups))


class Meeting:
    """A trainer whose every verb waits until the other trainer does the same."""

    def __init__(self, barrier: asyncio.Barrier) -> None:
        self._barrier = barrier

    async def _meet(self, *_: object) -> None:
        async with asyncio.timeout(5):
            await self._barrier.wait()

    async def forward_backward(self, groups: Sequence[Group]) -> dict[str, float]:
        await self._meet()
        return {"groups": float(len(groups))}

    async def optim_step(self) -> dict[str, float]:
        await self._meet()
        return {"steps": 1.0}

    async def score(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        await self._meet()
        return [(0.0,) for _ in samples]

    async def publish(self, version: int) -> None:
        await self._meet()

    save = restore = skip_steps = _meet


def test_roles_with_devices_of_their_own_work_at_the_same_time(groups: list[Group], tmp_path: Path) -> None:
    async def play(*, concurrent: bool) -> dict[str, float]:
        barrier = asyncio.Barrier(2)
        both = MultiPolicyTrainer({role: Meeting(barrier) for role in RATES}, ALGORITHM, concurrent=concurrent)  # type: ignore[arg-type]
        figures = {**await both.forward_backward(groups[:1]), **await both.optim_step()}
        await both.score(groups[0].samples)
        await both.publish(1)
        await both.save(tmp_path)
        await both.restore(tmp_path)
        return figures

    assert asyncio.run(play(concurrent=True)) == {"groups": 1, "tester/groups": 1, "steps": 1, "tester/steps": 1}


def test_in_one_process_roles_take_turns(groups: list[Group]) -> None:
    running, most = 0, 0

    class Counting(Meeting):
        async def _meet(self, *_: object) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1

    async def play() -> None:
        await MultiPolicyTrainer({role: Counting(asyncio.Barrier(2)) for role in RATES}, ALGORITHM).forward_backward(
            groups
        )  # type: ignore[misc]

    asyncio.run(play())
    assert most == 1


def test_a_failure_of_one_role_waits_for_the_other(groups: list[Group]) -> None:
    """Or else the other's update would go on beside whatever comes next."""
    ended: list[str] = []

    class Failing(Meeting):
        async def _meet(self, *_: object) -> None:
            raise TrainingError("NaN")

    class Slow(Meeting):
        async def _meet(self, *_: object) -> None:
            await asyncio.sleep(0.05)
            ended.append("tester")

    async def play() -> None:
        barrier = asyncio.Barrier(2)
        both = MultiPolicyTrainer({"coder": Failing(barrier), "tester": Slow(barrier)}, ALGORITHM, concurrent=True)  # type: ignore[dict-item]
        await both.forward_backward(groups[:1])

    with pytest.raises(TrainingError, match="NaN"):
        asyncio.run(play())
    assert ended == ["tester"]


def test_token_values_are_of_all_roles(cast: Cast, groups: list[Group]) -> None:
    trainers, _, _ = cast()
    both = MultiPolicyTrainer(trainers, ALGORITHM)
    numbered = [
        replace(group, prompt_index=at, samples=tuple(replace(each, index=i) for i, each in enumerate(group.samples)))
        for at, group in enumerate(groups)
    ]
    before = asyncio.run(both.score([each for group in numbered for each in group.samples]))
    asyncio.run(learn(both, numbered))
    found = {(each.prompt_index, each.index, each.role): each for each in asyncio.run(both.take_token_values())}
    expected = [(group.prompt_index, each) for group in numbered for each in group.samples]
    assert found.keys() == {(at, each.index, each.role) for at, each in expected}
    for (at, each), scores in zip(expected, before, strict=True):
        assert found[at, each.index, each.role].logprobs == pytest.approx(each.sampled(scores), abs=1e-5)
