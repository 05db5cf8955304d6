"""Options of the trainer against sums written out sample by sample, in double precision."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dojang.algos.grpo import DrGrpoConfig, GrpoConfig
from dojang.algos.policy_gradient import PolicyGradientConfig
from dojang.trainer.config import TrainConfig
from dojang.trainer.optimizer import make_optimizer
from dojang.trainer.torch_trainer import TorchTrainer
from dojang.types import Group, Metrics, Problem, Sample
from dojang.weight_sync.versions import WeightVersions
from error_bounds import assert_equal, in_double

Make = Callable[..., tuple[TorchTrainer, PreTrainedModel]]
TEMPERATURE = 0.8


@pytest.fixture
def make(micro_model: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase) -> Make:
    def make(algo: PolicyGradientConfig, **settings: object) -> tuple[TorchTrainer, PreTrainedModel]:
        model, reference = (in_double(micro_model(torch.float64, seed=seed)) for seed in (0, 1))
        trainer = TorchTrainer(
            model,
            reference if algo.kl_coef else None,
            tokenizer,
            algo.make(max_tokens=9),
            WeightVersions(torch.float64),
            TrainConfig(**{"lr": 1e-2, "max_tokens_per_microbatch": 20, **settings}),
            total_updates=10,
            max_tokens=9,
            temperature=TEMPERATURE,
            compute=torch.float64,
        )
        return trainer, model

    return make


@pytest.fixture
def groups(make_sample: Callable[..., Sample], problem: Problem) -> list[Group]:
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
        for index, (prompt, answer) in enumerate(((3, 4), (1, 1), (6, 2), (2, 9)))
    ]
    return [Group(problem, 0, tuple(made[:2])), Group(problem, 1, tuple(made[2:]))]


def step(trainer: TorchTrainer, groups: Sequence[Group]) -> Metrics:
    async def both() -> Metrics:
        return {**await trainer.forward_backward(groups), **await trainer.optim_step()}

    return asyncio.run(both())


def gradient(model: PreTrainedModel) -> list[Tensor]:
    return [each.grad.clone() for each in model.parameters() if each.grad is not None]


def weights(model: PreTrainedModel) -> list[Tensor]:
    return [each.detach().clone() for each in model.parameters()]


def entropies(model: PreTrainedModel, sample: Sample) -> Tensor:
    """Of the distributions that the answer's tokens are drawn from."""
    logits = model(input_ids=torch.tensor(sample.tokens[None])).logits[0, :-1] / TEMPERATURE
    logp = logits.log_softmax(-1)[torch.tensor(sample.mask[1:])]
    return -(logp.exp() * logp).sum(-1)


@pytest.mark.numerical
@pytest.mark.parametrize("algo", [GrpoConfig, DrGrpoConfig])
def test_the_entropy_bonus_is_the_mean_over_tokens_whatever_the_average(
    make: Make, groups: list[Group], algo: type[PolicyGradientConfig]
) -> None:
    plain, plain_model = make(algo())
    asyncio.run(plain.forward_backward(groups))
    trainer, model = make(algo(entropy={"coef": 0.3}))
    mean = torch.cat([entropies(plain_model, sample) for group in groups for sample in group.samples]).mean()
    (-0.3 * mean).backward()  # beside what is there
    found = asyncio.run(trainer.forward_backward(groups))
    assert found["actor/entropy"] == pytest.approx(mean.item())
    assert found["actor/entropy_coef"] == 0.3
    assert_equal(gradient(model), gradient(plain_model))


@pytest.mark.parametrize("alpha", [0.25, 1.0])
def test_the_reference_is_moved_towards_the_policy_and_resumed(
    make: Make, groups: list[Group], tmp_path: Path, alpha: float
) -> None:
    algo = GrpoConfig(kl_coef=0.1)
    trainer, model = make(algo, ref_model_sync_steps=2, ref_model_mixup_alpha=alpha)
    assert trainer._reference is not None
    reference = trainer._reference.model
    before = weights(reference)
    step(trainer, groups)
    assert all(map(torch.equal, weights(reference), before))
    step(trainer, groups)
    mixed = [alpha * new + (1 - alpha) * old for new, old in zip(weights(model), before, strict=True)]
    for found, wanted in zip(weights(reference), mixed, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-15)
    asyncio.run(trainer.save(tmp_path))
    other, resumed = make(algo, ref_model_sync_steps=2, ref_model_mixup_alpha=alpha)
    asyncio.run(other.restore(tmp_path))
    for _ in range(3):  # over another refresh
        assert step(trainer, groups) == step(other, groups)
    assert all(map(torch.equal, weights(model), weights(resumed)))
    fresh, _ = make(algo)
    asyncio.run(fresh.restore(tmp_path))
    assert step(fresh, groups)["actor/kl_loss"] != step(other, groups)["actor/kl_loss"]


def newton_schulz(slope: Tensor) -> Tensor:
    """Orthogonalisation as Muon defines it: each step maps a singular value s to a s + b s^3 + c s^5."""
    found = slope / slope.norm()
    for _ in range(5):
        left, sizes, right = torch.linalg.svd(found, full_matrices=False)
        found = left @ (3.4445 * sizes - 4.7750 * sizes**3 + 2.0315 * sizes**5).diag() @ right
    return found


def test_muon_orthogonalises_updates_of_hidden_matrices_and_leaves_the_rest_to_adamw(
    micro_model: Callable[..., PreTrainedModel],
) -> None:
    model, other = micro_model(torch.float64), micro_model(torch.float64)
    config = TrainConfig(lr=1e-2, weight_decay=0.1, optimizer="muon")
    optimizer = make_optimizer(model, config)
    plain = make_optimizer(other, config.model_copy(update={"optimizer": "adamw"}))
    before, draw = weights(model), torch.Generator().manual_seed(0)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        mine.grad = theirs.grad = torch.randn(mine.shape, generator=draw, dtype=torch.float64)
    optimizer.step()
    plain.step()
    names = [name for name, _ in model.named_parameters()]
    hidden = [name for name, each in model.named_parameters() if ".layers." in name and each.dim() == 2]
    assert len(hidden) == 7 * model.config.num_hidden_layers
    for name, old, mine, theirs in zip(names, before, model.parameters(), other.parameters(), strict=True):
        if name not in hidden:
            assert torch.equal(mine, theirs)
            continue
        assert mine.grad is not None
        update = (old * (1 - 1e-2 * 0.1) - mine.detach()) / (1e-2 * 0.2 * max(mine.shape) ** 0.5)
        wanted = newton_schulz(mine.grad)
        assert (update - wanted).norm() < 0.03 * wanted.norm()  # it is computed in bfloat16


def test_muon_is_resumed(make: Make, groups: list[Group], tmp_path: Path) -> None:
    (trainer, model), (other, resumed) = (make(GrpoConfig(), optimizer="muon") for _ in range(2))
    step(trainer, groups)
    asyncio.run(trainer.save(tmp_path))
    asyncio.run(other.restore(tmp_path))
    assert step(trainer, groups) == step(other, groups)
    assert all(map(torch.equal, weights(model), weights(resumed)))


def test_an_adaptive_coefficient_starts_after_the_first_step_and_is_resumed(
    make: Make, groups: list[Group], tmp_path: Path
) -> None:
    algo = GrpoConfig(entropy={"coef": 0.1, "target": 1e3, "delta": 0.05})
    trainer, model = make(algo)
    assert [step(trainer, groups)["actor/entropy_coef"] for _ in range(2)] == [0, pytest.approx(0.15)]
    asyncio.run(trainer.save(tmp_path))
    other, resumed = make(algo)
    asyncio.run(other.restore(tmp_path))
    figures, again = step(trainer, groups), step(other, groups)
    assert figures == again
    assert figures["actor/entropy_coef"] == pytest.approx(0.2)
    assert all(map(torch.equal, weights(model), weights(resumed)))
