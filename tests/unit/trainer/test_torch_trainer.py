"""The trainer against sums written out sample by sample."""

import asyncio
import resource
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from dojang.algos.cispo import CispoConfig
from dojang.algos.dppo import DppoConfig
from dojang.algos.grpo import DrGrpoConfig, GrpoConfig
from dojang.algos.gspo import GspoConfig
from dojang.algos.importance_correction import Opsm, TokenTis
from dojang.algos.m2po import M2poConfig
from dojang.algos.policy_gradient import PolicyGradientConfig
from dojang.algos.ppo import PpoConfig
from dojang.algos.sapo import SapoConfig
from dojang.core.errors import ConfigError, RunDirError, TrainingError
from dojang.protocols import LossAggregation
from dojang.trainer.checkpoint import read_weights, save_weights
from dojang.trainer.config import TrainConfig
from dojang.trainer.torch_trainer import TorchTrainer
from dojang.types import Group, Metrics, Problem, Sample, Span
from dojang.weight_sync.versions import WeightVersions
from error_bounds import EQUAL, assert_equal, in_double

Make = Callable[..., tuple[TorchTrainer, PreTrainedModel]]

TEMPERATURE = 0.8
SHAPES = ((3, 4), (1, 1), (6, 2), (2, 9), (3, 4), (5, 1))


@pytest.fixture
def make(micro_model: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase) -> Make:
    def make(
        dtype: torch.dtype = torch.float64,
        kl: float = 0.0,
        total: int = 10,
        seed: int = 0,
        algo: PolicyGradientConfig | None = None,
        **settings: object,
    ) -> tuple[TorchTrainer, PreTrainedModel]:
        model, reference = micro_model(dtype, seed=seed), micro_model(dtype, seed=1)
        if dtype is torch.float64:
            model, reference = in_double(model), in_double(reference)
        trainer = TorchTrainer(
            model,
            reference if kl else None,
            tokenizer,
            (algo or GrpoConfig(kl_coef=kl)).make(max_tokens=9),
            WeightVersions(dtype),
            TrainConfig(**{"lr": 1e-2, **settings}),
            total_updates=total,
            max_tokens=9,
            temperature=TEMPERATURE,
            compute=dtype,
        )
        return trainer, model

    return make


@pytest.fixture
def groups(make_sample: Callable[..., Sample], problem: Problem) -> list[Group]:
    """Two groups of ragged samples; behaviour log-probs near, but not at, those of the model."""
    draw = torch.Generator().manual_seed(0)

    def numbers(count: int) -> list[int]:
        return torch.randint(5, 290, (count,), generator=draw).tolist()

    made = [
        make_sample(
            prompt=numbers(prompt),
            answer=numbers(answer),
            logprobs=[-6.0 + 0.1 * place for place in range(answer)],
            advantage=(-1.0) ** index * (index + 1) / 3,
        )
        for index, (prompt, answer) in enumerate(SHAPES)
    ]
    return [Group(problem, 0, tuple(made[:3])), Group(problem, 1, tuple(made[3:]))]


def gradient(model: PreTrainedModel) -> dict[str, Tensor]:
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


def weights(model: PreTrainedModel) -> dict[str, Tensor]:
    return {name: each.detach().clone() for name, each in model.named_parameters()}


def answer_logprobs(model: PreTrainedModel, sample: Sample) -> Tensor:
    """One sample, no padding, every position."""
    logits = model(input_ids=torch.tensor(sample.tokens[None])).logits[0, :-1] / TEMPERATURE
    picked = logits.log_softmax(-1).gather(-1, torch.tensor(sample.tokens[1:])[:, None])[:, 0]
    return picked[torch.tensor(sample.mask[1:])]


def answer_behaviour(sample: Sample) -> Tensor:
    """The log-probs at which the answer was sampled."""
    mine = [value for value, chosen in zip(sample.logprobs, sample.mask, strict=True) if chosen]
    return torch.tensor(mine, dtype=torch.float64)


def reference_loss(
    model: PreTrainedModel, groups: Sequence[Group], reference: PreTrainedModel | None = None, kl: float = 0.0
) -> Tensor:
    """The loss of a step: over all tokens of all samples, divided by how many there are."""
    samples = [sample for group in groups for sample in group.samples]
    total = torch.zeros((), dtype=model.dtype)
    for sample in samples:
        logp = answer_logprobs(model, sample)
        old = answer_behaviour(sample)
        ratio = (logp - old).exp()
        total = total - torch.minimum(ratio * sample.advantage, ratio.clamp(0.8, 1.2) * sample.advantage).sum()
        if reference is not None:
            gap = answer_logprobs(reference, sample).detach() - logp
            total = total + kl * (gap.exp() - gap - 1).sum()
    return total / sum(sample.response_length for sample in samples)


def step(trainer: TorchTrainer, groups: Sequence[Group]) -> Metrics:
    async def both() -> Metrics:
        return {**await trainer.forward_backward(groups), **await trainer.optim_step()}

    return asyncio.run(both())


@pytest.mark.numerical
@pytest.mark.parametrize("max_tokens_per_microbatch", [1, 20, 8192])
def test_loss_and_gradient_are_those_of_the_sum_over_samples(
    make: Make, groups: list[Group], max_tokens_per_microbatch: int
) -> None:
    trainer, model = make(max_tokens_per_microbatch=max_tokens_per_microbatch)
    expected = reference_loss(model, groups)
    expected.backward()
    wanted = gradient(model)
    model.zero_grad()
    found = asyncio.run(trainer.forward_backward(groups))
    assert found["actor/loss"] == pytest.approx(expected.item(), abs=EQUAL)
    assert_equal(gradient(model).values(), wanted.values())


def test_the_gradient_does_not_depend_on_the_micro_batch(make: Make, groups: list[Group]) -> None:
    found = []
    for max_tokens_per_microbatch in (1, 16, 30, 8192):
        trainer, model = make(max_tokens_per_microbatch=max_tokens_per_microbatch)
        metrics = asyncio.run(trainer.forward_backward(groups))
        found.append((metrics, gradient(model)))
    (first_metrics, first_gradient), *others = found
    for metrics, grad in others:
        assert metrics == pytest.approx(first_metrics, rel=EQUAL, abs=EQUAL)
        assert_equal(grad.values(), first_gradient.values())


OLD = (TokenTis(cap=0.9), Opsm(delta=0.01))
ALGORITHMS: dict[str, PolicyGradientConfig] = {
    "grpo": GrpoConfig(dual_clip=1.5),
    "dr_grpo": DrGrpoConfig(),
    "gspo": GspoConfig(clip_low=0.5, clip_high=0.5),
    "cispo": CispoConfig(cap=1.1),
    "sapo": SapoConfig(loss_aggregation="sequences"),
    "dppo_tv": DppoConfig(low=1e-4, high=1e-4),
    "m2po": M2poConfig(threshold=0.02),
    "m2po, authors": M2poConfig(threshold=0.02, variant="authors"),
    "m2po, astraflow": M2poConfig(threshold=0.02, variant="astraflow"),
    "ppo": PpoConfig(),
    "corrected": GrpoConfig(old_logprobs="trainer", corrections=OLD),
}


@pytest.fixture
def relatives(groups: list[Group], micro_model: Callable[..., PreTrainedModel]) -> list[Group]:
    """Groups whose samples share a prompt, with behaviour log-probs on both sides of the model's."""
    model, draw = micro_model(torch.float64), torch.Generator().manual_seed(2)
    made = []
    for group in groups:
        prompt = tuple(range(20, 25 + group.prompt_index))
        samples = []
        for sample in group.samples:
            answer = tuple(sample.tokens[-sample.response_length :])
            mask = (False,) * len(prompt) + (True,) * len(answer)
            bare = replace(sample, tokens=prompt + answer, mask=mask, logprobs=(0.0,) * len(mask))
            drawn = answer_logprobs(model, bare).detach() + torch.randn(len(answer), generator=draw) / 5
            samples.append(replace(bare, logprobs=(0.0,) * len(prompt) + tuple(drawn.tolist())))
        made.append(replace(group, samples=tuple(samples)))
    return made


@pytest.mark.numerical
@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_algorithm_depends_on_the_micro_batch(make: Make, relatives: list[Group], name: str) -> None:
    found = []
    for max_tokens_per_microbatch in (1, 16, 30, 8192):
        trainer, model = make(max_tokens_per_microbatch=max_tokens_per_microbatch, algo=ALGORITHMS[name])
        found.append((asyncio.run(trainer.forward_backward(relatives)), gradient(model)))
    (first_metrics, first_gradient), *others = found
    assert any(bool(value.any()) for value in first_gradient.values())
    for metrics, grad in others:
        assert metrics == pytest.approx(first_metrics, rel=EQUAL, abs=EQUAL)
        assert_equal(grad.values(), first_gradient.values())


def test_m2po_sees_all_tokens_of_the_step_before_it_cuts_any(make: Make, relatives: list[Group]) -> None:
    trainer, model = make(max_tokens_per_microbatch=16, algo=ALGORITHMS["m2po"])
    found = asyncio.run(trainer.forward_backward(relatives))
    pairs = [
        (delta, sample.advantage)
        for group in relatives
        for sample in group.samples
        for delta in (answer_logprobs(model, sample) - answer_behaviour(sample)).tolist()
    ]
    squares = sorted(delta**2 for delta, advantage in pairs if delta * advantage > 0)
    assert found["actor/m2/before"] == pytest.approx(sum(squares) / len(squares), abs=1e-9)
    while sum(squares) / len(squares) > 0.02:
        squares.pop()
    assert found["actor/m2/after"] == pytest.approx(sum(squares) / len(squares), abs=1e-9)
    dropped = sum(delta * advantage > 0 and delta**2 > squares[-1] + 1e-12 for delta, advantage in pairs)
    assert found["actor/pg_clipfrac"] == pytest.approx(dropped / len(pairs))


@pytest.mark.parametrize("average", ["tokens", "sequences", "constant"])
def test_averages(make: Make, relatives: list[Group], average: LossAggregation) -> None:
    samples = [sample for group in relatives for sample in group.samples]
    trainer, model = make(
        max_tokens_per_microbatch=20, algo=GrpoConfig(loss_aggregation=average, clip_low=0.99, clip_high=99.0)
    )
    sums = []
    for sample in samples:
        ratio = (answer_logprobs(model, sample).detach() - answer_behaviour(sample)).exp()
        sums.append(-float(ratio.sum()) * sample.advantage)
    lengths = [sample.response_length for sample in samples]
    expected = {
        "tokens": sum(sums) / sum(lengths),
        "sequences": sum(each / length for each, length in zip(sums, lengths, strict=True)) / len(samples),
        "constant": sum(sums) / (9 * len(samples)),
    }
    found = asyncio.run(trainer.forward_backward(relatives))
    assert found["actor/loss"] == pytest.approx(expected[average], abs=1e-9)


def test_corrections_compare_the_engine_with_what_the_trainer_thought(make: Make, relatives: list[Group]) -> None:
    """In a first update that is what it thinks now: the ratio is 1, and only the weight is left."""
    trainer, model = make(algo=ALGORITHMS["corrected"])
    found = asyncio.run(trainer.forward_backward(relatives))
    assert found["actor/ppo_kl"] == 0.0
    samples = [sample for group in relatives for sample in group.samples]
    weights = [
        value
        for sample in samples
        for value in (answer_logprobs(model, sample) - answer_behaviour(sample)).exp().clamp(max=0.9).tolist()
    ]
    assert found["actor/correction/token_tis"] == pytest.approx(sum(weights) / len(weights), abs=1e-9)
    thoughts = iter(asyncio.run(trainer.score(samples)))
    recalled = [
        replace(group, samples=tuple(replace(each, old_logprobs=next(thoughts)) for each in group.samples))
        for group in relatives
    ]
    again = asyncio.run(trainer.forward_backward(recalled))
    assert again == pytest.approx(found, abs=1e-9)


def test_recomputing_changes_nothing(make: Make, relatives: list[Group]) -> None:
    found = []
    for setting, layers in ((False, []), (0, []), (1, [True, False]), (2, [True, True]), (True, [True, True])):
        trainer, model = make(gradient_checkpointing=setting)
        assert model.is_gradient_checkpointing is any(layers)
        if layers:
            assert [each.gradient_checkpointing for each in model.model.layers] == layers
        found.append((asyncio.run(trainer.forward_backward(relatives)), gradient(model)))
    for each in found[1:]:
        assert found[0][0] == each[0]
        torch.testing.assert_close(found[0][1], each[1], rtol=0, atol=0)


def test_more_layers_than_the_model_has_are_refused(make: Make) -> None:
    with pytest.raises(
        ConfigError, match=r"train\.gradient_checkpointing=3 is a number of layers, but the model has 2"
    ):
        make(gradient_checkpointing=3)


@pytest.mark.parametrize("setting", [-1, -24])
def test_a_negative_number_of_layers_is_refused(setting: int) -> None:
    with pytest.raises(ValueError, match=f"{setting} is no number of layers; set 0 or more"):
        TrainConfig(gradient_checkpointing=setting)


def test_calls_accumulate_until_the_step(make: Make, groups: list[Group]) -> None:
    trainer, model = make()
    asyncio.run(trainer.forward_backward(groups))
    once = gradient(model)
    asyncio.run(trainer.forward_backward(groups))
    for name, value in gradient(model).items():
        torch.testing.assert_close(value, 2 * once[name], rtol=1e-10, atol=1e-12, msg=name)
    asyncio.run(trainer.optim_step())
    assert gradient(model) == {}


@pytest.mark.numerical
def test_the_kl_term_agrees_with_the_sum_over_samples(
    make: Make, groups: list[Group], micro_model: Callable[..., PreTrainedModel]
) -> None:
    trainer, model = make(kl=0.2)
    expected = reference_loss(model, groups, in_double(micro_model(torch.float64, seed=1)), 0.2)
    expected.backward()
    wanted = gradient(model)
    model.zero_grad()
    found = asyncio.run(trainer.forward_backward(groups))
    assert found["actor/loss"] == pytest.approx(expected.item(), abs=EQUAL)
    assert found["actor/loss"] == pytest.approx(found["actor/pg_loss"] + 0.2 * found["actor/kl_loss"], abs=EQUAL)
    assert_equal(gradient(model).values(), wanted.values())


def without_advantage(group: Group) -> Group:
    return replace(group, samples=tuple(replace(each, advantage=0.0) for each in group.samples))


@pytest.mark.numerical
def test_with_a_kl_term_groups_of_zero_advantages_are_trained_on(
    make: Make, groups: list[Group], micro_model: Callable[..., PreTrainedModel]
) -> None:
    some = [groups[0], without_advantage(groups[1])]
    trainer, model = make(kl=0.2)
    reference_loss(model, some, in_double(micro_model(torch.float64, seed=1)), 0.2).backward()
    wanted = gradient(model)
    model.zero_grad()
    asyncio.run(trainer.forward_backward(some))
    assert_equal(gradient(model).values(), wanted.values())


@pytest.mark.numerical
@pytest.mark.parametrize("average", ["tokens", "sequences", "constant"])
def test_groups_of_zero_advantages_count_in_figures_and_in_the_constant_divisor(
    make: Make, groups: list[Group], average: LossAggregation
) -> None:
    some = [groups[0], without_advantage(groups[1])]
    found, gradients = [], []
    for batch in (groups[:1], some):
        trainer, model = make(algo=GrpoConfig(loss_aggregation=average), max_tokens_per_microbatch=16)
        found.append(asyncio.run(trainer.forward_backward(batch)))
        gradients.append(gradient(model))
    first, both = (sum(len(group.samples) for group in batch) for batch in (groups[:1], some))
    share = first / both if average == "constant" else 1.0
    assert found[1]["actor/loss"] == pytest.approx(share * found[0]["actor/loss"], abs=1e-9)
    assert_equal(gradients[1].values(), [share * each for each in gradients[0].values()])
    tokens = [sum(sample.response_length for sample in group.samples) for group in groups]
    alone = asyncio.run(make()[0].forward_backward(groups[1:]))
    for name in ("actor/entropy", "actor/ppo_kl", "actor/logp_gap"):
        full_tensor = (found[0][name] * tokens[0] + alone[name] * tokens[1]) / sum(tokens)
        assert found[1][name] == pytest.approx(full_tensor, abs=1e-9)


@pytest.mark.parametrize("name", ["grpo", "gspo", "cispo", "dppo_tv", "m2po", "corrected"])
def test_a_token_of_probability_zero_has_the_ratio_one(make: Make, relatives: list[Group], name: str) -> None:
    def behaved(value: float) -> list[Group]:
        sample = relatives[0].samples[0]
        logprobs = (*sample.logprobs[:-1], value)
        first = replace(relatives[0], samples=(replace(sample, logprobs=logprobs), *relatives[0].samples[1:]))
        return [first, *relatives[1:]]

    trainer, model = make(algo=ALGORITHMS[name])
    own = answer_logprobs(model, relatives[0].samples[0])[-1].item()
    expected = asyncio.run(trainer.forward_backward(behaved(own)))
    trainer, _ = make(algo=ALGORITHMS[name])
    found = step(trainer, behaved(-float("inf")))
    assert found["actor/zero_prob_tokens"] > expected["actor/zero_prob_tokens"] == 0.0
    if name != "m2po":  # whose mean counts a token only if it has moved, by rounding here
        assert found["actor/loss"] == pytest.approx(expected["actor/loss"], rel=1e-9)


@pytest.mark.parametrize("name", ["grpo", "m2po"])
def test_samples_without_a_token_are_no_error(make: Make, groups: list[Group], name: str) -> None:
    def emptied(group: Group) -> Group:
        return replace(group, samples=tuple(replace(each, mask=(False,) * len(each.mask)) for each in group.samples))

    trainer, model = make(algo=ALGORITHMS[name])
    before = weights(model)
    step(trainer, [emptied(group) for group in groups])
    assert all(torch.equal(value, before[name]) for name, value in weights(model).items())


def test_skipped_steps_advance_the_schedule_and_no_version(make: Make, groups: list[Group], tmp_path: Path) -> None:
    trainer, _ = make(schedule="cosine")
    rates = [step(trainer, groups)["actor/lr"] for _ in range(10)]
    skipping, _ = make(schedule="cosine")
    step(skipping, groups)
    asyncio.run(skipping.skip_steps(7))
    asyncio.run(skipping.save(tmp_path))
    resumed, _ = make(schedule="cosine")
    asyncio.run(resumed.restore(tmp_path))
    for each in (skipping, resumed):
        assert step(each, groups)["actor/lr"] == rates[8]


def test_figures_are_means_over_answer_tokens(make: Make, groups: list[Group]) -> None:
    trainer, model = make()
    found = asyncio.run(trainer.forward_backward(groups))
    gaps, entropies = [], []
    for sample in [sample for group in groups for sample in group.samples]:
        gaps.append((answer_logprobs(model, sample) - answer_behaviour(sample)).detach())
        logp = (
            (model(input_ids=torch.tensor(sample.tokens[None])).logits[0, :-1] / TEMPERATURE).log_softmax(-1).detach()
        )
        entropies.append(-(logp.exp() * logp).sum(-1)[torch.tensor(sample.mask[1:])])
    assert found["actor/ppo_kl"] == pytest.approx(-float(torch.cat(gaps).mean()), abs=1e-10)
    assert found["actor/logp_gap"] == pytest.approx(float(torch.cat(gaps).abs().mean()), abs=1e-10)
    assert found["actor/entropy"] == pytest.approx(float(torch.cat(entropies).mean()), abs=1e-10)


def test_scores_are_the_log_probs_of_the_answer(make: Make, groups: list[Group]) -> None:
    trainer, model = make(max_tokens_per_microbatch=12)
    samples = [sample for group in groups for sample in group.samples]
    for sample, found in zip(samples, asyncio.run(trainer.score(samples)), strict=True):
        assert len(found) == len(sample.tokens)
        start = len(sample.tokens) - sample.response_length
        assert found[:start] == (0.0,) * start
        assert found[start:] == pytest.approx(answer_logprobs(model, sample).tolist(), abs=1e-10)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_difference_counts_only_what_the_same_weights_have_drawn(make: Make, groups: list[Group]) -> None:
    trainer, model = make()
    first, second = groups[0].samples[0], replace(groups[0].samples[2], version=7)
    found = asyncio.run(trainer.forward_backward([Group(groups[0].problem, 0, (first, second))]))
    gaps = (answer_logprobs(model, first) - answer_behaviour(first)).detach().abs()
    assert found["actor/logprob_diff/mean"] == pytest.approx(float(gaps.mean()), abs=1e-10)
    assert found["actor/logprob_diff/max"] == pytest.approx(float(gaps.max()), abs=1e-10)
    length = len(first.tokens)
    mixed = replace(first, spans=(Span(-1, length - 2, length - 1), Span(0, length - 1, length)))
    for older in (second, mixed):
        stale = asyncio.run(trainer.forward_backward([Group(groups[0].problem, 0, (older,))]))
        assert not any(name.startswith("actor/logprob_diff") for name in stale)


def test_a_step_makes_a_credited_answer_likelier_and_a_blamed_one_less_likely(make: Make, groups: list[Group]) -> None:
    trainer, model = make(lr=1e-3)
    good, bad = groups[0].samples[0], groups[0].samples[1]  # advantages 1/3 and -2/3
    before = [float(answer_logprobs(model, sample).detach().sum()) for sample in (good, bad)]
    on_policy = [
        replace(
            sample,
            logprobs=(0.0,) * (len(sample.tokens) - sample.response_length)
            + tuple(answer_logprobs(model, sample).tolist()),
        )
        for sample in (good, bad)
    ]
    metrics = step(trainer, [Group(groups[0].problem, 0, tuple(on_policy))])
    after = [float(answer_logprobs(model, sample).detach().sum()) for sample in (good, bad)]
    assert after[0] > before[0]
    assert after[1] < before[1]
    assert metrics["actor/logp_gap"] == pytest.approx(0.0, abs=1e-10)


def test_the_first_step_is_adamw_with_a_clipped_gradient(make: Make, groups: list[Group]) -> None:
    trainer, model = make(max_grad_norm=1e-3, weight_decay=0.1, warmup_steps=5, total=10)
    before = weights(model)
    asyncio.run(trainer.forward_backward(groups))
    grads = gradient(model)
    norm = float(torch.cat([each.flatten() for each in grads.values()]).norm())
    assert norm > 1e-3
    metrics = asyncio.run(trainer.optim_step())
    rate = 1e-2 / 6  # five of ten steps of warm-up: the first of six rungs
    assert metrics == {"actor/grad_norm": pytest.approx(norm, rel=1e-10), "actor/lr": pytest.approx(rate)}
    for name, value in weights(model).items():
        clipped = grads[name] * (1e-3 / (norm + 1e-6))
        expected = before[name] * (1 - rate * 0.1) - rate * clipped / (clipped.abs() + 1e-8)
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-9, msg=name)


def test_publishing_hands_over_a_copy_under_the_given_version(make: Make, groups: list[Group]) -> None:
    trainer, model = make()
    step(trainer, groups)
    asyncio.run(trainer.publish(1))
    held = trainer._weights.fetch(1)
    published = weights(model)
    step(trainer, groups)
    for name, value in published.items():
        assert torch.equal(held[name], value)
        assert not torch.equal(held[name], model.get_parameter(name))


def test_a_loss_that_is_not_finite_raises_and_changes_nothing(make: Make, groups: list[Group]) -> None:
    trainer, model = make()
    before = weights(model)
    poisoned = Group(
        groups[0].problem,
        0,
        tuple(
            replace(sample, logprobs=tuple(float("nan") if mine else 0.0 for mine in sample.mask))
            for sample in groups[0].samples
        ),
    )
    with pytest.raises(TrainingError, match=r"actor/loss.* became NaN, infinite.*lower train\.lr"):
        asyncio.run(trainer.forward_backward([poisoned]))
    for name, value in weights(model).items():
        assert torch.equal(value, before[name])


def test_a_gradient_that_is_not_finite_raises_and_changes_nothing(make: Make, groups: list[Group]) -> None:
    trainer, model = make()
    before = weights(model)
    asyncio.run(trainer.forward_backward(groups))
    next(iter(model.parameters())).grad[0, 0] = float("inf")
    with pytest.raises(TrainingError, match="actor/grad_norm became NaN, infinite"):
        asyncio.run(trainer.optim_step())
    for name, value in weights(model).items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_restored_trainer_continues_bit_exactly(
    make: Make, groups: list[Group], tmp_path: Path, dtype: torch.dtype
) -> None:
    settings = {"dtype": dtype, "schedule": "cosine", "warmup_steps": 2, "weight_decay": 0.01}
    trainer, model = make(**settings)
    step(trainer, groups)
    step(trainer, groups[:1])
    asyncio.run(trainer.save(tmp_path))
    metrics = [step(trainer, groups[1:]), step(trainer, groups)]
    other, restored = make(**settings, seed=5)  # starts from other weights, which must not matter
    asyncio.run(other.restore(tmp_path))
    assert [step(other, groups[1:]), step(other, groups)] == metrics
    for name, value in weights(model).items():
        assert torch.equal(value, restored.get_parameter(name)), name


def test_a_checkpoint_is_a_hugging_face_directory(
    make: Make, groups: list[Group], tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    trainer, model = make(dtype=torch.float32)
    step(trainer, groups)
    asyncio.run(trainer.save(tmp_path))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    for name, value in weights(model).items():
        assert torch.equal(loaded.get_parameter(name), value), name
    again = AutoTokenizer.from_pretrained(tmp_path)
    chat = [{"role": "user", "content": "what is 1+1?"}]
    assert again.encode("the answer is 2") == tokenizer.encode("the answer is 2")
    assert again.apply_chat_template(chat, tokenize=False) == tokenizer.apply_chat_template(chat, tokenize=False)


def test_buffers_are_saved_too(tmp_path: Path) -> None:
    config = Glm4MoeConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=48,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=0,
    )
    model = Glm4MoeForCausalLM(config).eval()
    bias = {name: each for name, each in model.named_buffers() if name.endswith("e_score_correction_bias")}
    assert len(bias) == 2
    for each in bias.values():
        each.copy_(torch.tensor([3.0, -3.0, 2.0, -2.0]))
    save_weights(tmp_path, model, write=True)
    found = read_weights(tmp_path, model)
    for name in bias:
        assert found[name].tolist() == [3.0, -3.0, 2.0, -2.0]
    kept = load_file(tmp_path / "model.safetensors")
    del kept[next(iter(bias))]
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="1 weights are missing, such as"):
        read_weights(tmp_path, model)


@pytest.mark.parametrize("file", ["optimizer/.metadata", "optimizer/__0_0.distcp", "model.safetensors"])
@pytest.mark.parametrize("damage", ["missing", "empty", "garbage", "cut short"])
def test_a_damaged_checkpoint_is_refused_and_changes_nothing(
    make: Make, groups: list[Group], tmp_path: Path, file: str, damage: str
) -> None:
    trainer, _ = make()
    step(trainer, groups)
    asyncio.run(trainer.save(tmp_path))
    path = tmp_path / file
    full_tensor = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(
            {"empty": b"", "garbage": b"garbage" * 100, "cut short": full_tensor[: len(full_tensor) // 2]}[damage]
        )
    other, model = make(seed=5)
    before = weights(model)
    with pytest.raises(RunDirError, match=r"(?s)checkpoint .* cannot be read .*; delete it to fall back"):
        asyncio.run(other.restore(tmp_path))
    for name, value in weights(model).items():
        assert torch.equal(value, before[name])


@pytest.fixture
def little_memory() -> Iterator[None]:
    """No more than a gigabyte beyond what is in use."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**30, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.usefixtures("little_memory")  # without a config.json, a model class may build its default: billions
@pytest.mark.parametrize("content", [None, b"", b"{"])
def test_a_checkpoint_without_its_configuration_is_refused(
    make: Make, groups: list[Group], tmp_path: Path, content: bytes | None
) -> None:
    trainer, _ = make()
    step(trainer, groups)
    asyncio.run(trainer.save(tmp_path))
    (tmp_path / "config.json").unlink()
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(RunDirError, match=r"(?s)cannot be read .*config\.json.*; delete it to fall back"):
        asyncio.run(trainer.restore(tmp_path))
