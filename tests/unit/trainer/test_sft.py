"""Supervised fine-tuning in the trainer, against transformers' own cross-entropy with the prompt's labels masked."""

import asyncio
from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dojang.algos.sft import SftConfig
from dojang.trainer.config import TrainConfig
from dojang.trainer.torch_trainer import TorchTrainer
from dojang.types import Group, Message, Problem, Sample
from dojang.weight_sync.versions import WeightVersions
from dojang.workflows.chat_renderer import ChatRenderer
from dojang.workflows.sft_samples import SftWorkflow
from error_bounds import assert_equal, in_double

ROWS = [
    ("what is 1+1?", "the answer is 2"),
    ("2+2?", "4"),
    ("what is 1+1?", "stop here: two"),
    ("x", "the the the the"),
]


@pytest.fixture
def samples(tokenizer: PreTrainedTokenizerBase) -> list[Sample]:
    made = SftWorkflow(ChatRenderer(tokenizer, context=512, max_tokens=8), "completion")
    return [
        made.sample(Problem(f"rows/{at}", "rows", (Message("user", asked),), None, columns={"completion": said}))
        for at, (asked, said) in enumerate(ROWS)
    ]


def plain_loss(model: PreTrainedModel, sample: Sample, reduction: str) -> torch.Tensor:
    """transformers' convention: label -100 where there is no loss."""
    labels = torch.tensor([token if mine else -100 for token, mine in zip(sample.tokens, sample.mask, strict=True)])
    logits = model(input_ids=torch.tensor(sample.tokens[None])).logits[0]
    return torch.nn.functional.cross_entropy(logits[:-1], labels[1:], ignore_index=-100, reduction=reduction)


def test_loss_and_gradient_are_those_of_cross_entropy_on_completion_tokens(
    micro_model: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase, samples: list[Sample]
) -> None:
    groups = [
        Group(Problem(f"rows/{at}", "rows", (Message("user", "x"),), None), at, (each,))
        for at, each in enumerate(samples)
    ]
    for average, max_tokens_per_microbatch in (("tokens", 2048), ("tokens", 20), ("sequences", 2048)):
        algorithm = SftConfig(loss_aggregation=average).make(8)
        credited = [
            Group(group.problem, group.prompt_index, tuple(_with(each, advantages[0]) for each in group.samples))
            for group, advantages in zip(groups, algorithm.advantages(groups), strict=True)
        ]
        model = in_double(micro_model(torch.float64))
        trainer = TorchTrainer(
            model,
            None,
            tokenizer,
            algorithm,
            WeightVersions(torch.float64),
            TrainConfig(lr=1e-2, max_tokens_per_microbatch=max_tokens_per_microbatch),
            total_updates=10,
            max_tokens=8,
            temperature=1.0,
            compute=torch.float64,
        )
        metrics = asyncio.run(trainer.forward_backward(credited))

        oracle = in_double(micro_model(torch.float64))
        if average == "tokens":
            loss = sum(plain_loss(oracle, each, "sum") for each in samples) / sum(sum(each.mask) for each in samples)
        else:
            loss = sum(plain_loss(oracle, each, "mean") for each in samples) / len(samples)
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        assert metrics["actor/loss"] == pytest.approx(float(loss.detach()), rel=1e-10)
        assert "actor/logp_gap" not in metrics
        assert_equal([each.grad for each in model.parameters()], [each.grad for each in oracle.parameters()])


def _with(sample: Sample, advantage: float) -> Sample:
    from dataclasses import replace

    return replace(sample, advantage=advantage)
