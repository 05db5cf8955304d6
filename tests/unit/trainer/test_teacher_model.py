"""Distillation in the trainer: the gradient of the reverse KL to a frozen teacher, against one written out in full."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dojang.algos.distillation import Distillation, DistillationConfig
from dojang.algos.grpo import GrpoConfig
from dojang.trainer.config import TrainConfig
from dojang.trainer.teacher_model import Teacher
from dojang.trainer.torch_trainer import TorchTrainer
from dojang.types import Completion, Group, Outcome, Problem, Sample, Verdict
from dojang.weight_sync.versions import WeightVersions
from dojang.workflows.chat_renderer import ChatRenderer
from dojang.workflows.retokenize import Retokenizer
from error_bounds import EQUAL, assert_equal, in_double
from other_tokenizer import END_OF_TURN, other_tokenizer

SHAPES = ((3, 4), (1, 1), (6, 2), (2, 9))
TEMPERATURE = 0.8
WRONG = Verdict(Outcome.WRONG, 0.0)


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


def test_chunks_have_the_log_probs_of_a_plain_forward_pass_of_both_models(
    make, micro_model: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase, problem: Problem
) -> None:
    """A teacher with another tokenizer: log-probs up to each byte of the text, and their difference where both
    tokenizers have a boundary."""
    other = other_tokenizer()
    teacher = in_double(micro_model(torch.float64, seed=3, vocab_size=len(other)))
    trainer, student = make(teacher)
    renderer = ChatRenderer(other, context=None, max_tokens=0)
    retokenizer = Retokenizer(tokenizer, other, context=None, renderer=renderer)
    prompt = ChatRenderer(tokenizer, context=None, max_tokens=0).render(problem.messages)
    chat = [{"role": "user", "content": problem.messages[0].content}]
    read = other.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    samples = []
    for index, text in enumerate(("the answer is 10, 11", "stop here", "", "1")):
        tokens = (*tokenizer.encode(text), tokenizer.eos_token_id)
        plain = Sample.of(prompt, Completion(tokens, (0.0,) * len(tokens), text, "stop", 0), WRONG, index)
        own = plain.at_mask(logprobs(student, plain).detach())
        samples.append(replace(plain, logprobs=own))
    ask = Distillation(
        DistillationConfig(teacher="some/model"), trainer.teacher_logprobs, retokenizer, compare=retokenizer.compare
    )
    (found,), figures = asyncio.run(ask.advantages([Group(problem, 0, tuple(samples))]))
    for sample, mine in zip(found.samples, samples, strict=True):
        begins = other.encode(read)
        answer = [*other.encode(mine.text), other.convert_tokens_to_ids(END_OF_TURN)]
        scored = Sample.of(begins, Completion(tuple(answer), (0.0,) * len(answer), "", "stop", 0), WRONG)
        theirs = by_byte(other, answer, logprobs(teacher, scored).tolist())
        ours = by_byte(tokenizer, mine.tokens[mine.mask].tolist(), mine.sampled(mine.logprobs))
        shared = sorted(ours.keys() & theirs.keys())
        wanted = list[float]()
        for start, end in pairwise(shared):
            (first, before), (count, after) = ours[start], ours[end]
            wanted += [(theirs[end][1] - theirs[start][1] - (after - before)) / (count - first)] * (count - first)
        assert sample.sampled(sample.advantages) == pytest.approx(wanted, rel=1e-6)  # advantages are single precision
    assert figures["distillation/unaligned"] == 0


def by_byte(
    tokenizer: PreTrainedTokenizerBase, tokens: list[int], logprobs: list[float]
) -> dict[int, tuple[int, float]]:
    """Bytes of an ASCII text so far -> number of tokens and sum of log-probs. The end of the turn is one byte more."""
    sizes = [len(str(tokenizer.decode(tokens[:count]))) for count in range(len(tokens))]
    found = {size: (count, sum(logprobs[:count])) for count, size in enumerate(sizes)}
    return {**found, sizes[-1] + 1: (len(tokens), sum(logprobs))}
