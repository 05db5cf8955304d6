"""What the benchmark of training compares with does the same sums, and what it counts is there."""

import asyncio
from dataclasses import replace
from random import Random

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from dojang.algos.grpo import GrpoConfig
from dojang.trainer.config import TrainConfig
from dojang.trainer.torch_trainer import TorchTrainer
from dojang.types import Group
from dojang.weight_sync.versions import WeightVersions
from lengths import geometric
from shapes import LLAMA_TINY, random
from train_plain import Plain
from train_update import CONTESTANTS, SIZES, Case, cases, fitting, rows, useful_flops
from train_work import PROMPTS, SAMPLES, wanted


@pytest.fixture
def groups() -> list[Group]:
    """Ragged samples with ratios on both sides of the clip, and prompts of different lengths."""
    made = Case("", LLAMA_TINY, 4, 3, (3, 9), lambda draw: geometric(draw, 6, 20)).groups()
    assert len({int(group.samples[0].mask.argmax()) for group in made}) > 1
    draw = Random(1)

    def shifted(logprobs: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(each + draw.uniform(-0.5, 0.5) if each else 0.0 for each in logprobs)

    return [
        replace(group, samples=tuple(replace(each, logprobs=shifted(each.logprobs)) for each in group.samples))
        for group in made
    ]


def gradient(model: PreTrainedModel) -> dict[str, Tensor]:
    return {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
@pytest.mark.parametrize("chunk", [None, 5])
def test_plain_transformers_learn_what_the_trainer_learns(
    groups: list[Group], chunk: int | None, gradient_checkpointing: bool
) -> None:
    mine, theirs = (random(LLAMA_TINY, "cpu").double() for _ in range(2))
    trainer = TorchTrainer(
        mine,
        None,
        None,  # type: ignore[arg-type]
        GrpoConfig().make(max_tokens=20),
        WeightVersions(torch.float64),
        TrainConfig(lr=1e-2, gradient_checkpointing=gradient_checkpointing, max_tokens_per_microbatch=30),
        total_updates=10,
        max_tokens=20,
        temperature=1.0,
        compute=torch.float64,
    )
    plain = Plain(
        theirs, sequences=5, compute=torch.float64, lr=1e-2, gradient_checkpointing=gradient_checkpointing, chunk=chunk
    )
    samples = [sample for group in groups for sample in group.samples]
    found = asyncio.run(trainer.forward_backward(groups))
    assert found["actor/pg_clipfrac"] > 0.1
    # Rotations and norms are in single precision in either, and padding on the left shifts positions.
    assert plain.forward_backward(samples) == pytest.approx(found["actor/loss"], rel=1e-6)
    scale = max(float(each.abs().max()) for each in gradient(mine).values())
    for name, expected in gradient(mine).items():
        torch.testing.assert_close(gradient(theirs)[name], expected, rtol=0, atol=1e-6 * scale)


def test_on_policy_it_learns_from_advantages_alone(groups: list[Group]) -> None:
    samples = [sample for group in groups for sample in group.samples]
    plain = Plain(random(LLAMA_TINY, "cpu").double(), sequences=3, compute=torch.float64, on_policy=True)
    told = [(sample.advantage, sample.response_length) for sample in samples]
    mean = sum(advantage * length for advantage, length in told) / sum(length for _, length in told)
    assert plain.forward_backward(samples) == pytest.approx(-mean)


def test_all_contestants_find_the_same_loss() -> None:
    for case in cases(SIZES["tiny"]):
        losses = {
            who: play(random(case.config, "cpu"), case, case.groups(), torch.float32)()
            for who, play in CONTESTANTS.items()
        }
        assert losses["dojang"] == pytest.approx(losses["plain transformers"], rel=1e-4)
        assert losses["dojang"] == pytest.approx(losses["plain transformers, scores in chunks"], rel=1e-4)


def test_micro_batches_are_as_large_as_the_budget_with_their_padding() -> None:
    lengths = iter((2, 8, 2, 8, 2, 8))
    (group,) = Case("", LLAMA_TINY, 1, 6, (2, 2), lambda _: next(lengths)).groups()
    assert [fitting(group.samples, budget) for budget in (3, 10, 19, 20, 29, 30, 59, 60)] == [1, 1, 1, 2, 2, 3, 5, 6]


def test_useful_work_is_counted_once() -> None:
    model = random(LLAMA_TINY, "cpu")
    case = Case("", LLAMA_TINY, 1, 2, (3, 3), lambda _: 2)
    parameters = sum(each.numel() for each in model.parameters())
    contexts = (1 + 2 + 3) + 2 * (4 + 5)
    assert useful_flops(model, case.groups()) == 6 * parameters * 7 + 12 * 2 * 32 * contexts


def test_the_update_alone_makes_a_row_for_every_case_and_baseline() -> None:
    found = rows(tiny=True, rounds=1)
    assert [row.unit for row in found] == ["s"] * 6  # without a GPU there is nothing to say of memory and peak
    assert all(row.ratio and row.ratio > 0 for row in found)


@pytest.mark.parametrize("mean", [4, 64])
def test_lengths_are_geometric(mean: int) -> None:
    draw = Random(0)
    drawn = [geometric(draw, mean, 10**6) for _ in range(4000)]
    assert min(drawn) == 1
    assert sum(drawn) / len(drawn) == pytest.approx(mean, rel=0.06)
    assert max(geometric(draw, mean, mean) for _ in range(100)) == mean


def test_all_engines_sample_the_same_numbers_of_tokens() -> None:
    assert wanted("uniform", 3) == [64] * (PROMPTS * SAMPLES)
    assert wanted("geometric", 3) == wanted("geometric", 3) != wanted("geometric", 4)
