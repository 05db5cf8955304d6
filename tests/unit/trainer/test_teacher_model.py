"""Distillation in the trainer: the gradient of the reverse KL to a frozen teacher, against one written out in full."""

import asyncio
from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dojang.algos.distillation import Distillation, DistillationConfig
from dojang.algos.grpo import GrpoConfig
from dojang.trainer.config import TrainConfig
from dojang.trainer.teacher_model import Teacher
from dojang.trainer.torch_trainer import TorchTrainer
from dojang.types import Group, Problem, Sample
from dojang.weight_sync.versions import WeightVersions
from error_bounds import EQUAL, assert_equal, in_double

SHAPES = ((3, 4), (1, 1), (6, 2), (2, 9))
TEMPERATURE = 0.8


def logprobs(model: PreTrainedModel, sample: Sample) -> torch.Tensor:
    """Of the sampled tokens; one sample, no packing."""
    logits = model(input_ids=torch.tensor(sample.tokens[None])).logits[0, :-1] / TEMPERATURE
    picked = logits.log_softmax(-1).gather(-1, torch.tensor(sample.tokens[1:])[:, None])[:, 0]
    return picked[torch.tensor(sample.mask[1:])]


@pytest.fixture
def make(micro_model: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase):
    def make(
        teacher: PreTrainedModel, *, offload: bool = False, **train: object
    ) -> tuple[TorchTrainer, PreTrainedModel]:
        model = in_double(micro_model(torch.float64))
        trainer = TorchTrainer(
            model,
            None,
            tokenizer,
            GrpoConfig().make(max_tokens=9),
            WeightVersions(torch.float64),
            TrainConfig(lr=1e-2, **train),
            total_updates=10,
            max_tokens=9,
            temperature=TEMPERATURE,
            compute=torch.float64,
            teacher=Teacher(teacher, temperature=TEMPERATURE, compute=torch.float64, offload=offload),
        )
        return trainer, model

    return make


@pytest.fixture
def groups(
    micro_model: Callable[..., PreTrainedModel], make_sample: Callable[..., Sample], problem: Problem
) -> list[Group]:
    """Ragged samples with the log-probs of the model that samples: on-policy."""
    draw, model = torch.Generator().manual_seed(0), in_double(micro_model(torch.float64))
    samples = []
    for index, (prompt, answer) in enumerate(SHAPES):
        numbers = torch.randint(5, 290, (prompt + answer,), generator=draw).tolist()
        sample = make_sample(prompt=numbers[:prompt], answer=numbers[prompt:], advantage=0.0, index=index)
        own = logprobs(model, sample).tolist()
        samples.append(
            make_sample(prompt=numbers[:prompt], answer=numbers[prompt:], logprobs=own, advantage=0.0, index=index)
        )
    return [Group(problem, 0, tuple(samples))]


def test_gradient_is_that_of_the_reverse_kl_on_sampled_tokens(
    make, groups: list[Group], micro_model: Callable[..., PreTrainedModel]
) -> None:
    """The gradient of mean_t log pi(y_t) (log pi(y_t) - log teacher(y_t)).detach(): REINFORCE, -KL as the reward."""
    teacher = in_double(micro_model(torch.float64, seed=3))
    trainer, model = make(teacher)
    distillation = Distillation(DistillationConfig(teacher="some/model"), trainer.teacher_logprobs)

    async def learn() -> None:
        found, _ = await distillation.advantages(groups)
        await trainer.forward_backward(found)

    asyncio.run(learn())
    found = [each.grad.clone() for each in model.parameters()]

    oracle, frozen = in_double(micro_model(torch.float64)), in_double(micro_model(torch.float64, seed=3))
    loss, tokens = torch.zeros((), dtype=torch.float64), 0
    for sample in groups[0].samples:
        student = logprobs(oracle, sample)
        gap = (student - logprobs(frozen, sample)).detach()
        loss, tokens = loss + (gap * student).sum(), tokens + len(gap)
    (loss / tokens).backward()
    assert_equal(found, [each.grad for each in oracle.parameters()])
    assert all(each.grad is None for each in teacher.parameters())


def test_teacher_log_probs_are_those_of_the_teacher_alone(
    make, groups: list[Group], micro_model: Callable[..., PreTrainedModel]
) -> None:
    samples = groups[0].samples
    for offload in (False, True):
        trainer, _ = make(in_double(micro_model(torch.float64, seed=3)), offload=offload, max_tokens_per_microbatch=9)
        found = asyncio.run(trainer.teacher_logprobs(samples))
        plain = in_double(micro_model(torch.float64, seed=3))
        for sample, row in zip(samples, found, strict=True):
            chosen = [value for value, mine in zip(row, sample.mask, strict=True) if mine]
            torch.testing.assert_close(
                torch.tensor(chosen, dtype=torch.float64), logprobs(plain, sample).detach(), rtol=0, atol=EQUAL * 100
            )
            assert not any(value for value, mine in zip(row, sample.mask, strict=True) if not mine)
