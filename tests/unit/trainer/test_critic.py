"""The critic against sums written out sample by sample, and beside the policy it is trained with."""

import asyncio
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dojang.algos.ppo import PpoConfig
from dojang.core.errors import RunDirError, TrainingError
from dojang.trainer.config import CriticConfig, TrainConfig
from dojang.trainer.critic import Critic
from dojang.trainer.torch_trainer import TorchTrainer
from dojang.types import Group, Metrics, Problem, Sample
from dojang.weight_sync.versions import WeightVersions
from error_bounds import EQUAL, assert_equal, in_double

CLIP = 0.2


class Pair:
    """A trainer, and the models in it."""

    def __init__(self, trainer: TorchTrainer, model: PreTrainedModel, critic: Critic | None) -> None:
        self.trainer, self.model, self.critic = trainer, model, critic

    def step(self, groups: Sequence[Group]) -> Metrics:
        async def both() -> Metrics:
            return {**await self.trainer.forward_backward(groups), **await self.trainer.optim_step()}

        return asyncio.run(both())

    def compute_gae(self, groups: Sequence[Group]) -> list[Group]:
        """With what the critic says of them now."""
        samples = [sample for group in groups for sample in group.samples]
        values = iter(asyncio.run(self.trainer.compute_values(samples)))
        told = [
            replace(group, samples=tuple(replace(each, values=next(values)) for each in group.samples))
            for group in groups
        ]
        return self.trainer._algorithm.compute_gae(told)

    def policy_weights(self) -> dict[str, Tensor]:
        return {name: each.detach().clone() for name, each in self.model.named_parameters()}

    def critic_weights(self) -> dict[str, Tensor]:
        assert self.critic is not None
        modules = {"decoder": self.critic._value_model.decoder, "head": self.critic._value_model.head}
        return {
            f"{part}.{name}": each.detach().clone()
            for part, module in modules.items()
            for name, each in module.named_parameters()
        }


Make = Callable[..., Pair]


@pytest.fixture
def make(micro_model: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase) -> Make:
    def make(
        *,
        dtype: torch.dtype = torch.float64,
        seed: int = 0,
        skewed: bool = False,
        alone: bool = False,
        critic: CriticConfig = CriticConfig(lr=1e-2),  # noqa: B008  # it is frozen
        **settings: object,
    ) -> Pair:
        """`skewed`: a critic whose head has learned something already; `alone`: no critic."""
        model, valuer = micro_model(dtype, seed=seed), micro_model(dtype, seed=seed + 10)
        if dtype is torch.float64:
            model, valuer = in_double(model), in_double(valuer)
        config = TrainConfig(**{"lr": 1e-2, "critic": critic, **settings})
        algorithm = PpoConfig(value_clip=CLIP, lam=0.9).make(max_tokens=12)
        beside = None if alone else Critic(valuer, algorithm, config, compute=dtype)
        if skewed and beside is not None:
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                for each in beside._value_model.head.parameters():
                    torch.nn.init.normal_(each, std=0.3)
        trainer = TorchTrainer(
            model,
            None,
            tokenizer,
            algorithm,
            WeightVersions(dtype),
            config,
            total_updates=10,
            max_tokens=12,
            temperature=1.0,
            compute=dtype,
            critic=beside,
        )
        return Pair(trainer, model, beside)

    return make


@pytest.fixture
def groups(make_sample: Callable[..., Sample], problem: Problem) -> list[Group]:
    """Ragged answers after prompts they share, one of a single token, one with words of others in between."""
    draw = torch.Generator().manual_seed(0)

    def samples(prompt: Sequence[int], sizes: Sequence[int], rewards: Sequence[float]) -> tuple[Sample, ...]:
        return tuple(
            make_sample(
                reward,
                prompt=prompt,
                answer=torch.randint(5, 290, (size,), generator=draw).tolist(),
                logprobs=[-6.0 + 0.1 * place for place in range(size)],
                index=index,
            )
            for index, (size, reward) in enumerate(zip(sizes, rewards, strict=True))
        )

    first, second = samples((20, 21, 22), (4, 1, 9), (1.0, 0.0, 1.0)), samples((30, 31), (6, 2), (0.5, 0.5))
    talk = replace(second[0], mask=(False, False, True, True, False, False, True, True))
    return [Group(problem, 0, first), Group(problem, 1, (talk, second[1]))]


def all_samples(groups: Sequence[Group]) -> list[Sample]:
    return [sample for group in groups for sample in group.samples]


def chosen(sample: Sample, stream: Sequence[float]) -> list[float]:
    return [each for each, mine in zip(stream, sample.mask, strict=True) if mine]


def alone(critic: Critic, sample: Sample) -> Tensor:
    """Its values before the tokens of one sample, by transformers."""
    x_TE = critic._value_model.decoder(input_ids=torch.tensor(sample.tokens[None])).last_hidden_state[0]
    return critic._value_model.head(x_TE).squeeze(-1)[:-1][torch.tensor(sample.mask[1:])]


def gradient(critic: Critic) -> list[Tensor]:
    return [each.grad.clone() for each in critic._value_model.parameters() if each.grad is not None]


def test_initial_values_are_zero(make: Make, groups: list[Group]) -> None:
    samples = all_samples(groups)
    assert asyncio.run(make().trainer.compute_values(samples)) == [(0.0,) * len(sample.tokens) for sample in samples]


@pytest.mark.parametrize("max_tokens_per_microbatch", [1, 16, 8192])
def test_values_are_those_of_each_sample_alone(make: Make, groups: list[Group], max_tokens_per_microbatch: int) -> None:
    pair = make(skewed=True, max_tokens_per_microbatch=max_tokens_per_microbatch)
    assert pair.critic is not None
    samples = all_samples(groups)
    for sample, found in zip(samples, asyncio.run(pair.trainer.compute_values(samples)), strict=True):
        assert chosen(sample, found) == pytest.approx(alone(pair.critic, sample).tolist(), abs=1e-9)
        assert not any(each for each, mine in zip(found, sample.mask, strict=True) if not mine)
    assert gradient(pair.critic) == []


def test_values_do_not_depend_on_later_tokens(make: Make, groups: list[Group]) -> None:
    pair = make(skewed=True)
    sample = groups[0].samples[0]
    other = replace(sample, tokens=(*sample.tokens[:4], sample.tokens[4] + 1, *sample.tokens[5:]))
    first, second = (chosen(sample, each) for each in asyncio.run(pair.trainer.compute_values([sample, other])))
    assert first[:2] == pytest.approx(second[:2], abs=1e-12)
    assert first[2] != pytest.approx(second[2], abs=1e-6)


def value_loss(critic: Critic, groups: Sequence[Group]) -> Tensor:
    """Over all tokens of all samples, divided by how many there are."""
    total, samples = torch.zeros((), dtype=torch.float64), all_samples(groups)
    for sample in samples:
        value = alone(critic, sample)
        old, wanted = (
            torch.tensor(chosen(sample, each), dtype=torch.float64) for each in (sample.values, sample.returns)
        )
        kept = torch.minimum(torch.maximum(value, old - CLIP), old + CLIP)
        total = total + torch.maximum((value - wanted) ** 2, (kept - wanted) ** 2).sum() / 2
    return total / sum(sample.response_length for sample in samples)


@pytest.fixture
def moved(make: Make, groups: list[Group]) -> list[Group]:
    """Traced by a critic with other weights, so that some values have left the clip."""
    return make(skewed=True, seed=1).compute_gae(groups)


@pytest.mark.numerical
@pytest.mark.parametrize("max_tokens_per_microbatch", [1, 16, 30, 8192])
def test_loss_and_gradient_are_those_of_the_sum_over_samples(
    make: Make, moved: list[Group], max_tokens_per_microbatch: int
) -> None:
    pair = make(skewed=True, max_tokens_per_microbatch=max_tokens_per_microbatch)
    assert pair.critic is not None
    expected = value_loss(pair.critic, moved)
    expected.backward()
    wanted = gradient(pair.critic)
    pair.critic._optimizer.zero_grad()
    found = asyncio.run(pair.trainer.forward_backward(moved))
    assert found["critic/vf_loss"] == pytest.approx(expected.item(), rel=EQUAL)
    assert 0 < found["critic/vf_clipfrac"] < 1
    assert_equal(gradient(pair.critic), wanted)


@pytest.mark.numerical
def test_neither_figures_nor_gradients_depend_on_the_micro_batch(make: Make, moved: list[Group]) -> None:
    found = []
    for max_tokens_per_microbatch in (1, 16, 30, 8192):
        pair = make(skewed=True, max_tokens_per_microbatch=max_tokens_per_microbatch)
        assert pair.critic is not None
        metrics = asyncio.run(pair.trainer.forward_backward(moved))
        policy = [each.grad for each in pair.model.parameters()]
        found.append((metrics, gradient(pair.critic), policy))
    (metrics, critic, policy), *others = found
    for each in others:
        assert each[0] == pytest.approx(metrics, rel=EQUAL, abs=EQUAL)
        assert_equal(each[1], critic)
        assert_equal(each[2], policy)


def test_figures_are_of_the_values_that_gave_credit(make: Make, moved: list[Group]) -> None:
    found = asyncio.run(make(skewed=True, max_tokens_per_microbatch=16).trainer.forward_backward(moved))
    samples = all_samples(moved)
    values, returns = (
        np.concatenate([chosen(sample, getattr(sample, name)) for sample in samples]) for name in ("values", "returns")
    )
    assert found["critic/values/mean"] == pytest.approx(values.mean())
    assert found["critic/returns/mean"] == pytest.approx(returns.mean())
    assert found["critic/vf_explained_var"] == pytest.approx(1 - (returns - values).var() / returns.var())


def test_equal_returns_have_no_explained_variance(make: Make, groups: list[Group]) -> None:
    pair = make()
    alike = [
        replace(group, samples=tuple(replace(each, returns=(0.3,) * len(each.tokens)) for each in group.samples))
        for group in pair.compute_gae(groups)
    ]
    assert "critic/vf_explained_var" not in pair.step(alike)


def test_policy_and_critic_do_not_disturb_each_other(make: Make, moved: list[Group]) -> None:
    """The policy does what it would do without a critic, given the same advantages; the critic only its own."""
    together, single = make(skewed=True), make(alone=True)
    before = together.critic_weights()
    with_critic, without = together.step(moved), single.step(moved)
    assert {name: with_critic[name] for name in without} == without
    assert set(with_critic) - set(without) == {
        "critic/vf_loss",
        "critic/vf_clipfrac",
        "critic/vf_explained_var",
        "critic/values/mean",
        "critic/returns/mean",
        "critic/grad_norm",
    }
    torch.testing.assert_close(together.policy_weights(), single.policy_weights(), rtol=0, atol=0)
    assert all(not torch.equal(value, before[name]) for name, value in together.critic_weights().items())


def test_the_first_step_is_adamw_with_a_clipped_gradient(make: Make, moved: list[Group]) -> None:
    pair = make(skewed=True, critic=CriticConfig(lr=3e-3), max_grad_norm=1e-3, weight_decay=0.1)
    assert pair.critic is not None
    before = [each.detach().clone() for each in pair.critic._value_model.parameters()]
    asyncio.run(pair.trainer.forward_backward(moved))
    grads = gradient(pair.critic)
    norm = float(torch.cat([each.flatten() for each in grads]).norm())
    assert asyncio.run(pair.trainer.optim_step())["critic/grad_norm"] == pytest.approx(norm, rel=1e-10)
    for value, old, grad in zip(pair.critic._value_model.parameters(), before, grads, strict=True):
        clipped = grad * (1e-3 / (norm + 1e-6))
        expected = old * (1 - 3e-3 * 0.1) - 3e-3 * clipped / (clipped.abs() + 1e-8)
        torch.testing.assert_close(value.detach(), expected, rtol=0, atol=1e-9)


def test_the_critic_learns_to_predict_rewards(make: Make, groups: list[Group]) -> None:
    """Before their first token the answers of a group are all alike to it; that much it cannot explain."""
    pair = make(critic=CriticConfig(lr=3e-3, warmup_steps=99))
    found = [pair.step(pair.compute_gae(groups)) for _ in range(60)]
    assert found[0]["critic/vf_explained_var"] == pytest.approx(0.0, abs=1e-9)
    assert found[-1]["critic/vf_explained_var"] > 0.5
    assert found[-1]["critic/vf_loss"] < found[0]["critic/vf_loss"] / 10
    for sample, values in zip(
        all_samples(groups), asyncio.run(pair.trainer.compute_values(all_samples(groups))), strict=True
    ):
        assert chosen(sample, values)[1:] == pytest.approx([sample.reward] * (sample.response_length - 1), abs=0.2)


def test_while_it_warms_up_the_policy_waits(make: Make, groups: list[Group]) -> None:
    pair = make(critic=CriticConfig(lr=1e-2, warmup_steps=2), weight_decay=0.1, warmup_steps=3)
    policy, critic = pair.policy_weights(), pair.critic_weights()
    waiting = [pair.step(pair.compute_gae(groups)) for _ in range(2)]
    torch.testing.assert_close(pair.policy_weights(), policy, rtol=0, atol=0)
    assert all(not torch.equal(value, critic[name]) for name, value in pair.critic_weights().items())
    assert all(each["actor/grad_norm"] == 0.0 and "actor/loss" not in each for each in waiting)
    learning = pair.step(pair.compute_gae(groups))
    assert learning["actor/grad_norm"] > 0
    assert learning["actor/lr"] == pytest.approx(1e-2 / 4)  # its own warm-up begins only now
    assert all(not torch.equal(value, policy[name]) for name, value in pair.policy_weights().items())


def test_recomputing_changes_nothing(make: Make, moved: list[Group]) -> None:
    found = []
    for enable_gradient_checkpointing in (False, 1, True):
        pair = make(skewed=True, gradient_checkpointing=enable_gradient_checkpointing)
        assert pair.critic is not None
        assert pair.critic._value_model.decoder.is_gradient_checkpointing is bool(enable_gradient_checkpointing)
        found.append((asyncio.run(pair.trainer.forward_backward(moved)), gradient(pair.critic)))
    for each in found[1:]:
        assert found[0][0] == each[0]
        torch.testing.assert_close(found[0][1], each[1], rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed:UserWarning")  # where a processor has no such arithmetic
def test_half_precision_is_for_the_arithmetic_only(make: Make, groups: list[Group]) -> None:
    plain = make(dtype=torch.float32, skewed=True)
    half = make(dtype=torch.float32, skewed=True)
    assert plain.critic is not None
    assert half.critic is not None
    half.critic._value_model._compute = torch.bfloat16
    found = [
        torch.tensor(sum(asyncio.run(each.trainer.compute_values(all_samples(groups))), ())) for each in (plain, half)
    ]
    assert not torch.equal(found[0], found[1])
    torch.testing.assert_close(found[0], found[1], rtol=0.1, atol=0.1)
    half.step(half.compute_gae(groups))
    assert {each.dtype for each in half.critic._value_model.parameters()} == {torch.float32}


def test_a_value_that_is_not_finite_raises_and_changes_nothing(make: Make, moved: list[Group]) -> None:
    pair = make(skewed=True)
    assert pair.critic is not None
    asyncio.run(pair.trainer.forward_backward(moved))
    policy, critic = pair.policy_weights(), pair.critic_weights()
    pair.critic._value_model.head.weight.grad[0, 0] = float("nan")
    with pytest.raises(TrainingError, match=r"critic/grad_norm became NaN.*lower train\.critic\.lr"):
        asyncio.run(pair.trainer.optim_step())
    torch.testing.assert_close(pair.policy_weights(), policy, rtol=0, atol=0)
    torch.testing.assert_close(pair.critic_weights(), critic, rtol=0, atol=0)
    lost = [
        replace(
            group, samples=tuple(replace(each, returns=(float("nan"),) * len(each.tokens)) for each in group.samples)
        )
        for group in moved
    ]
    with pytest.raises(TrainingError, match=r"critic/vf_loss.* became NaN"):
        asyncio.run(pair.trainer.forward_backward(lost))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_restored_policy_and_critic_continue_bit_exactly(
    make: Make, groups: list[Group], tmp_path: Path, dtype: torch.dtype
) -> None:
    settings = {"dtype": dtype, "weight_decay": 0.01, "critic": CriticConfig(lr=3e-3, warmup_steps=1)}
    pair = make(**settings)
    pair.step(pair.compute_gae(groups))
    pair.step(pair.compute_gae(groups[:1]))
    asyncio.run(pair.trainer.save(tmp_path))
    metrics = [pair.step(pair.compute_gae(some)) for some in (groups[1:], groups)]
    other = make(**settings, seed=5, skewed=True)  # starts from other weights, which must not matter
    asyncio.run(other.trainer.restore(tmp_path))
    assert [other.step(other.compute_gae(some)) for some in (groups[1:], groups)] == metrics
    torch.testing.assert_close(other.critic_weights(), pair.critic_weights(), rtol=0, atol=0)
    torch.testing.assert_close(other.policy_weights(), pair.policy_weights(), rtol=0, atol=0)


def test_a_resumed_run_may_have_another_rate(make: Make, groups: list[Group], tmp_path: Path) -> None:
    pair = make(critic=CriticConfig(lr=1e-2))
    pair.step(pair.compute_gae(groups))
    asyncio.run(pair.trainer.save(tmp_path))
    moves = []
    for rate in (1e-2, 1e-4):
        other = make(critic=CriticConfig(lr=rate))
        asyncio.run(other.trainer.restore(tmp_path))
        before = other.critic_weights()
        other.step(other.compute_gae(groups))
        moves.append(sum(float((each - before[name]).abs().sum()) for name, each in other.critic_weights().items()))
    assert moves[1] == pytest.approx(moves[0] / 100, rel=1e-6)


@pytest.mark.parametrize("file", ["", ".metadata", "__0_0.distcp"])
@pytest.mark.parametrize("damage", ["missing", "garbage", "cut short"])
def test_a_damaged_critic_is_refused_and_changes_nothing(
    make: Make, groups: list[Group], tmp_path: Path, file: str, damage: str
) -> None:
    pair = make()
    pair.step(pair.compute_gae(groups))
    asyncio.run(pair.trainer.save(tmp_path))
    path = tmp_path / "critic" / file
    if not file:
        shutil.rmtree(path)
    else:
        full_tensor = path.read_bytes()
        path.unlink()
        if damage != "missing":
            path.write_bytes({"garbage": b"garbage" * 100, "cut short": full_tensor[: len(full_tensor) // 2]}[damage])
    other = make(seed=5, skewed=True)
    policy, critic = other.policy_weights(), other.critic_weights()
    with pytest.raises(RunDirError, match=r"(?s)checkpoint .* cannot be read .*; delete it to fall back"):
        asyncio.run(other.trainer.restore(tmp_path))
    torch.testing.assert_close(other.policy_weights(), policy, rtol=0, atol=0)
    torch.testing.assert_close(other.critic_weights(), critic, rtol=0, atol=0)


def test_without_a_critic_nothing_of_it_is_saved(make: Make, tmp_path: Path) -> None:
    asyncio.run(make(alone=True).trainer.save(tmp_path))
    assert not (tmp_path / "critic").exists()
