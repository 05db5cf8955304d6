"""What every Trainer promises, wherever its processes are."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from dojang import models
from dojang.build.local import LocalPolicy, load_tokenizer, numerics, prepare_torch
from dojang.config import recipe as recipes
from dojang.config.run_config import RunConfig
from dojang.core.errors import RanksLost, TrainingError
from dojang.protocols import Trainer
from dojang.trainer.process_group import SINGLE_PROCESS
from dojang.types import Group, Sample
from ray_cluster import NEEDS_RAY, alone

T = TypeVar("T")
MakeGroup = Callable[..., Group]


@dataclass
class Student:
    """A trainer, and what it has published."""

    trainer: Trainer
    fetch: Callable[[int], Any]

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(work)

    def step(self, groups: list[Group]) -> dict[str, float]:
        async def both() -> dict[str, float]:
            return {**await self.trainer.forward_backward(groups), **await self.trainer.optim_step()}

        return self.do(both())


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with alone(4):
        yield


def configured(*settings: str) -> RunConfig:
    # AdamW divides by gradients: where they are nearly zero, rounding errors would decide, and transformers' norms are
    # in float32 even here. With this eps, weights differ by a hundredth of what gradients do.
    steps = ("train.lr=1e-3", "train.eps=0.1", "train.warmup_steps=0", "distillation.teacher=dojang-tiny")
    return recipes.load("quickstart", ["model.dtype=float64", *steps, *settings])


def here(config: RunConfig) -> Student:
    numeric = numerics(config)
    prepare_torch(numeric.device)
    source = models.resolve(config.model.name)
    policy = LocalPolicy(config, numeric, SINGLE_PROCESS, source, load_tokenizer(source)[0])
    return Student(policy.make_trainer(config.algo.make(config.rollout.max_tokens)), policy.weights.fetch)


def elsewhere(config: RunConfig) -> Student:
    import ray

    from dojang.build.ray import RayPolicy, resolve_numerics
    from dojang.cluster.ray.object_store import LatestWeights, get_weights

    config, numeric = resolve_numerics(config)
    policy = RayPolicy(config, numeric, load_tokenizer(models.resolve(config.model.name))[0])
    assert isinstance(policy.weights, LatestWeights)
    weights = policy.weights
    trainer = policy.make_trainer(config.algo.make(config.rollout.max_tokens))
    return Student(trainer, lambda version: get_weights(ray.get(weights.find(version).whole)))


@pytest.fixture(params=["torch", pytest.param("ray", marks=NEEDS_RAY), pytest.param("two ranks", marks=NEEDS_RAY)])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[[], Student]]:
    made: list[Student] = []

    def make() -> Student:
        if request.param == "torch":
            made.append(here(configured()))
        else:
            request.getfixturevalue("cluster")
            ranks = 2 if request.param == "two ranks" else 1
            made.append(elsewhere(configured("runtime.name=ray", f"runtime.trainers={ranks}")))
        return made[-1]

    yield make
    for each in made:
        each.do(each.trainer.close())


@pytest.fixture
def groups(make_group: MakeGroup) -> list[Group]:
    def credited(group: Group) -> Group:
        own = [replace(each, advantage=1.0 - 2.0 * (at % 2)) for at, each in enumerate(group.samples)]
        return replace(group, samples=tuple(own))

    answers = [(20, 21, 22), (23, 24), (25, 26, 27, 28), (29,)]
    return [
        credited(replace(make_group((1.0, 0.0), answer=answer, logprobs=(-2.0,) * len(answer)), prompt_index=at))
        for at, answer in enumerate(answers)
    ]


def samples_of(groups: list[Group]) -> list[Sample]:
    return [sample for group in groups for sample in group.samples]


def test_updates_equal_those_of_one_process(make: Callable[[], Student], groups: list[Group]) -> None:
    student, expected = make(), here(configured())
    before = student.do(student.trainer.score(samples_of(groups)))
    for found, wanted in zip(before, expected.do(expected.trainer.score(samples_of(groups))), strict=True):
        assert found == pytest.approx(wanted, abs=1e-10)
    for _ in range(2):
        assert student.step(groups) == pytest.approx(expected.step(groups), rel=1e-6, abs=1e-9)
    recorded = student.do(student.trainer.take_token_values())
    assert [(each.prompt_index, each.index) for each in recorded] == [
        (at, index) for at in range(4) for index in (0, 1)
    ]
    for values, sample, told in zip(recorded, samples_of(groups), before, strict=True):  # of the first of both passes
        assert values.logprobs.tolist() == pytest.approx(sample.sampled(told), abs=1e-5)
    assert student.do(student.trainer.take_token_values()) == []
    after = student.do(student.trainer.score(samples_of(groups)))
    assert after != before
    for found, wanted in zip(after, expected.do(expected.trainer.score(samples_of(groups))), strict=True):
        assert found == pytest.approx(wanted, abs=1e-6)
    taught = student.do(student.trainer.teacher_logprobs(samples_of(groups)))  # the initial model, frozen
    for found, wanted in zip(taught, before, strict=True):
        assert found == pytest.approx(wanted, abs=1e-10)


def test_published_weights_are_the_updated_ones(make: Callable[[], Student], groups: list[Group]) -> None:
    student = make()
    student.do(student.trainer.publish(4))
    before = {name: tensor.clone() for name, tensor in student.fetch(4).items()}
    student.step(groups)
    student.do(student.trainer.publish(5))
    after = student.fetch(5)
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("shared", [True, False], ids=["shared disk", "no shared disk"])
def test_a_restored_trainer_continues_where_it_was_saved(
    make: Callable[[], Student],
    groups: list[Group],
    tmp_path: Path,
    shared: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    student = make()
    if not shared:
        if not hasattr(student.trainer, "_sees"):
            pytest.skip("it has one disk")

        async def blind(path: Path) -> bool:
            return False

        monkeypatch.setattr(student.trainer, "_sees", blind)
    student.step(groups)
    student.do(student.trainer.save(tmp_path))
    expected = student.step(groups)
    student.step(groups)
    student.do(student.trainer.restore(tmp_path))
    assert student.step(groups) == pytest.approx(expected, abs=1e-12)


def test_a_nan_loss_raises_training_error(make: Callable[[], Student], groups: list[Group]) -> None:
    broken = replace(groups[0], samples=tuple(replace(each, advantage=float("nan")) for each in groups[0].samples))
    student = make()
    with pytest.raises(TrainingError):
        student.step([broken, *groups[1:]])


@pytest.mark.parametrize("ranks", [1, pytest.param(2)])
@pytest.mark.filterwarnings("ignore")
def test_a_lost_rank_raises_ranks_lost(ranks: int, groups: list[Group], request: pytest.FixtureRequest) -> None:
    pytest.importorskip("ray", reason="Ray is not installed here; make test-ray has it")
    request.getfixturevalue("cluster")
    student = elsewhere(configured("runtime.name=ray", f"runtime.trainers={ranks}"))
    student.step(groups)
    student.trainer._ranks[-1].kill()  # type: ignore[attr-defined]
    with pytest.raises(RanksLost):
        student.step(groups)
    student.do(student.trainer.close())
