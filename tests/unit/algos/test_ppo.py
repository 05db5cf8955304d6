"""PPO: advantages against sums of k-step estimates, the value loss against its formula, gradients included."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from oracles import (
    Array,
    Batch,
    assert_extremes_stay_finite,
    assert_garbage_is_ignored,
    assert_near,
    assert_nothing_is_learned_without_advantage,
    assert_same,
    clipped_surrogate,
    each_token,
    gradient_of,
    in_each_stream,
    mixed,
    numeric_gradient,
    run,
    with_garbage,
)
from pydantic import ValidationError

from dojang.algos.grpo import GrpoConfig
from dojang.algos.ppo import PpoConfig, compute_gae
from dojang.protocols import Requirements
from dojang.types import Group, Outcome, Problem, Sample, Verdict

MakeSample = Callable[..., Sample]


def mixture(values: Sequence[float], reward: float, gamma: float, lam: float) -> list[float]:
    """Not by a recursion: each token's advantages over 1, 2, ... steps ahead, weighted by lam."""
    count, found = len(values), []
    for place in range(count):
        left = count - place
        ahead = [gamma**k * values[place + k] - values[place] for k in range(1, left)]
        whole = gamma ** (left - 1) * reward - values[place]
        weights = [(1 - lam) * lam ** (k - 1) for k in range(1, left)] + [lam ** (left - 1)]
        assert sum(weights) == pytest.approx(1.0)
        found.append(float(np.dot(weights, [*ahead, whole])))
    return found


def test_advantages_by_hand() -> None:
    found = compute_gae([0.5, 0.2, 0.8], [0.0, 0.0, 1.0], gamma=0.9, lam=0.5)
    # deltas: 0.9 * 0.2 - 0.5 = -0.32, 0.9 * 0.8 - 0.2 = 0.52, 1 - 0.8 = 0.2; each adds 0.45 of what follows
    assert found == pytest.approx([-0.0455, 0.61, 0.2], rel=1e-12)


@pytest.mark.parametrize("count", [1, 2, 7, 40])
@pytest.mark.parametrize("gamma", [1.0, 0.97, 0.5])
@pytest.mark.parametrize("lam", [1.0, 0.95, 0.3, 0.0])
def test_advantages_are_mixtures_of_all_horizons(count: int, gamma: float, lam: float) -> None:
    rng = np.random.default_rng(count)
    values, reward = rng.normal(0, 1, count).tolist(), float(rng.normal(0, 2))
    found = compute_gae(values, [*[0.0] * (count - 1), reward], gamma, lam)
    assert found == pytest.approx(mixture(values, reward, gamma, lam), rel=1e-9, abs=1e-12)


def test_lam_1_looks_to_the_end_and_lam_0_one_token_ahead() -> None:
    values = [0.25, -1.0, 0.5]
    assert compute_gae(values, [0.0, 0.0, 2.0], 1.0, 1.0) == pytest.approx([1.75, 3.0, 1.5])
    assert compute_gae(values, [0.0, 0.0, 2.0], 1.0, 0.0) == pytest.approx([-1.25, 1.5, 1.5])
    assert compute_gae([0.25], [2.0], 0.5, 0.5) == [1.75]  # nothing comes after the only token, whatever gamma
    assert compute_gae([], [], 1.0, 1.0) == []


@pytest.fixture
def groups(make_sample: MakeSample, problem: Problem) -> list[Group]:
    """Ragged answers, one of a single token and one with words of others in between."""
    rng = np.random.default_rng(3)

    def sample(reward: float, mask: Sequence[int], index: int) -> Sample:
        chosen = tuple(map(bool, mask))
        values = tuple(float(rng.normal()) if mine else 0.0 for mine in chosen)
        return make_sample(reward, prompt=(), answer=range(len(mask)), mask=chosen, values=values, index=index)

    first = [sample(1.0, [0, 0, 1, 1, 1], 0), sample(0.0, [0, 0, 1], 1)]
    second = [sample(0.5, [0, 1, 0, 0, 1, 1], 0), sample(0.5, [0, 1, 1, 1, 1, 1, 1], 1)]
    return [Group(problem, 0, tuple(first)), Group(problem, 1, tuple(second))]


def chosen(sample: Sample, stream: Sequence[float]) -> list[float]:
    return [each for each, mine in zip(stream, sample.mask, strict=True) if mine]


def everything(groups: Sequence[Group], name: str) -> Array:
    return np.array(
        [each for group in groups for sample in group.samples for each in chosen(sample, getattr(sample, name))]
    )


def oracle(groups: Sequence[Group], gamma: float, lam: float) -> Array:
    """The advantages of all tokens, before they are whitened."""
    samples = [sample for group in groups for sample in group.samples]
    return np.concatenate([mixture(chosen(each, each.values), each.reward, gamma, lam) for each in samples])


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.8)])
def test_a_trace_has_advantages_and_returns_where_tokens_were_chosen(
    groups: list[Group], gamma: float, lam: float
) -> None:
    estimated = PpoConfig(gamma=gamma, lam=lam, whiten=False).make(max_tokens=64).compute_gae(groups)
    expected = oracle(groups, gamma, lam)
    assert_same(everything(estimated, "advantages"), expected, tolerance=1e-9)
    assert_same(everything(estimated, "returns"), expected + everything(groups, "values"), tolerance=1e-9)
    for before, after in zip(groups, estimated, strict=True):
        for old, new in zip(before.samples, after.samples, strict=True):
            assert replace(new, advantages=(), returns=()) == old
            for stream in (new.advantages, new.returns):
                assert not any(each for each, mine in zip(stream, new.mask, strict=True) if not mine)


def test_without_discount_the_return_of_every_token_is_the_reward(groups: list[Group]) -> None:
    for group in PpoConfig().make(max_tokens=64).compute_gae(groups):
        for sample in group.samples:
            assert chosen(sample, sample.returns) == pytest.approx([sample.reward] * sample.response_length)


def test_advantages_are_whitened_over_the_tokens_of_the_batch_and_returns_are_not(groups: list[Group]) -> None:
    plain, white = (PpoConfig(lam=0.9, whiten=each).make(max_tokens=64).compute_gae(groups) for each in (False, True))
    raw = everything(plain, "advantages")
    assert_same(everything(white, "advantages"), (raw - raw.mean()) / (raw.std(ddof=1) + 1e-8), tolerance=1e-9)
    assert_same(everything(white, "returns"), everything(plain, "returns"))
    alone = PpoConfig(lam=0.9).make(max_tokens=64).compute_gae(groups[:1])
    assert not np.allclose(everything(alone, "advantages"), everything(white[:1], "advantages"))


def test_equal_advantages_become_zero(make_group: Callable[..., Group]) -> None:
    groups = [make_group((0.7, 0.7), values=(0.0,) * 5), make_group((0.7,), values=(0.0,) * 5)]
    estimated = PpoConfig().make(max_tokens=64).compute_gae(groups)
    assert not everything(estimated, "advantages").any()
    assert everything(estimated, "returns").tolist() == [0.7] * 6


def test_an_answer_without_tokens_is_left_as_it_is(make_group: Callable[..., Group]) -> None:
    (group,) = PpoConfig().make(max_tokens=64).compute_gae([make_group((1.0,), answer=(), values=(0.0,) * 3)])
    assert [*group.samples[0].advantages] == [*group.samples[0].returns] == [0.0] * 3
    assert PpoConfig().make(max_tokens=64).compute_gae([]) == []


def test_length_counts_even_if_all_rewards_are_alike(make_sample: MakeSample, problem: Problem) -> None:
    """The critic cannot know what the others of the group were worth."""
    samples = tuple(
        make_sample(1.0, answer=range(10, 10 + size), values=(0.0,) * (3 + size), finish="length")
        for size in (4, 8, 10)
    )
    (group,) = (
        PpoConfig(overlong_buffer_fraction=0.4, overlong_penalty=0.5, whiten=False)
        .make(max_tokens=10)
        .compute_gae([Group(problem, 0, samples)])
    )
    assert [sample.returns[-1] for sample in group.samples] == pytest.approx([1.0, 0.75, 0.5])


def test_an_unjudged_sample_has_no_gae(make_group: Callable[..., Group], make_sample: MakeSample) -> None:
    group = make_group((1.0,), values=(0.0,) * 5)
    unjudged = make_sample(verdict=Verdict(Outcome.JUDGE_ERROR, None, detail="lost"), values=(0.0,) * 5)
    with pytest.raises(ValueError, match="must not be trained on"):
        PpoConfig().make(max_tokens=64).compute_gae([replace(group, samples=(*group.samples, unjudged))])


def test_a_sample_is_recorded_beside_the_whole_step(make_group: Callable[..., Group]) -> None:
    """Rewards that differ only between problems teach a critic; none that differ at all do not."""
    algorithm = PpoConfig().make(max_tokens=64)
    ((low,), (high,)) = algorithm.advantages([make_group((0.0,)), make_group((1.0,))])
    assert low == pytest.approx(-math.sqrt(0.5))
    assert high == pytest.approx(math.sqrt(0.5))
    assert algorithm.advantages([make_group((0.3, 0.3)), make_group((0.3,))]) == [(0.0, 0.0), (0.0,)]


@pytest.mark.parametrize("seed", range(3))
def test_the_policy_learns_by_the_clipped_surrogate_with_an_advantage_for_each_token(seed: int) -> None:
    given = mixed(seed=seed)
    given = replace(given, advantage=np.random.default_rng(seed).normal(0, 1, given.logp.shape))

    def surrogate(at: Batch) -> Array:
        return each_token(at, lambda delta, credit: clipped_surrogate(math.exp(delta), credit, 0.2, 0.2))

    found = run(PpoConfig(), given)
    assert_same(found.loss, surrogate(given))
    assert_near(found.gradient, gradient_of(surrogate, given))
    np.testing.assert_array_equal(found.loss, run(GrpoConfig(), given).loss)


@with_garbage
@in_each_stream
def test_masked_tokens_contribute_no_loss_and_no_gradient(garbage: float, where: str) -> None:
    assert_garbage_is_ignored(PpoConfig(kl_coef=0.1), where, garbage)


def test_extreme_ratios_stay_finite() -> None:
    assert_extremes_stay_finite(PpoConfig(kl_coef=0.1))


def test_samples_without_advantage_teach_nothing() -> None:
    assert_nothing_is_learned_without_advantage(PpoConfig())


CLIP = 0.25
MASK = np.random.default_rng(1).random((4, 9)) < 0.7
MASK[3] = False


def value_batch(seed: int = 0) -> tuple[Array, Array, Array]:
    """Values, what they were, and returns."""
    rng = np.random.default_rng(seed)
    old = rng.normal(0, 1, MASK.shape)
    return old + rng.normal(0, 0.4, MASK.shape), old, rng.normal(0, 1, MASK.shape)


def value_oracle(value: Array, old: Array, wanted: Array, clip: float) -> Array:
    loss = np.zeros_like(value)
    for row, column in np.argwhere(MASK):
        place = int(row), int(column)
        error = (value[place] - wanted[place]) ** 2
        if clip:
            kept = min(max(value[place], old[place] - clip), old[place] + clip)
            error = max(error, (kept - wanted[place]) ** 2)
        loss[place] = error / 2
    return loss


def value_loss(value: Array, old: Array, wanted: Array, clip: float) -> tuple[Array, Array, dict[str, Array]]:
    leaf = torch.tensor(value, requires_grad=True)
    algorithm = PpoConfig(value_clip=clip).make(max_tokens=64)
    found = algorithm.value_loss(leaf, torch.tensor(old), torch.tensor(wanted), torch.tensor(MASK))
    (gradient,) = torch.autograd.grad(found.loss_BT.sum(), leaf)
    return found.loss_BT.detach().numpy(), gradient.numpy(), {k: v.detach().numpy() for k, v in found.figures.items()}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("clip", [0.0, CLIP])
def test_the_value_loss_and_its_gradient_agree_with_the_oracle(seed: int, clip: float) -> None:
    value, old, wanted = value_batch(seed)
    loss, gradient, figures = value_loss(value, old, wanted, clip)
    assert_same(loss, value_oracle(value, old, wanted, clip))
    assert_near(gradient, numeric_gradient(lambda at: float(value_oracle(at, old, wanted, clip).sum()), value))
    np.testing.assert_array_equal(figures["critic/vf_loss"], loss)
    cut = loss > value_oracle(value, old, wanted, 0.0)
    np.testing.assert_array_equal(figures["critic/vf_clipfrac"], cut)
    assert not gradient[cut].any()
    assert cut.any() == bool(clip)


@pytest.mark.parametrize(
    ("value", "loss", "gradient"),
    [
        (1.1, 0.405, -0.9),  # within the clip: (1.1 - 2)^2 / 2
        (1.5, 0.28125, 0.0),  # it went the right way, but too far: as if it were 1.25
        (0.5, 1.125, -1.5),  # the wrong way: the plain error is the larger
        (3.5, 1.125, 1.5),  # past the return: so it is again
    ],
)
def test_single_values_by_hand(value: float, loss: float, gradient: float) -> None:
    leaf = torch.tensor([[value]], dtype=torch.float64, requires_grad=True)
    old, wanted = torch.ones(1, 1).double(), 2 * torch.ones(1, 1).double()
    found = PpoConfig(value_clip=0.25).make(max_tokens=64).value_loss(leaf, old, wanted, torch.ones(1, 1).bool())
    assert found.loss_BT.item() == pytest.approx(loss)
    assert torch.autograd.grad(found.loss_BT.sum(), leaf)[0].item() == pytest.approx(gradient)


@with_garbage
@pytest.mark.parametrize("where", range(3))
@pytest.mark.parametrize("clip", [0.0, CLIP])
def test_values_outside_the_mask_contribute_nothing(garbage: float, where: int, clip: float) -> None:
    clean = value_batch()
    dirty = [np.where(MASK, each, garbage) if at == where else each for at, each in enumerate(clean)]
    expected, found = value_loss(*clean, clip), value_loss(dirty[0], dirty[1], dirty[2], clip)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])
    assert not found[1][~MASK].any()


def test_defaults_are_the_published_ones() -> None:
    config = PpoConfig()
    assert (config.loss_aggregation, config.clip_low, config.clip_high, config.kl_coef) == ("tokens", 0.2, 0.2, 0.0)
    assert (config.gamma, config.lam, config.value_clip, config.whiten) == (1.0, 1.0, 0.2, True)
    assert config.make(max_tokens=64).requirements == Requirements(critic=True, zero_advantage=True)


def test_an_algorithm_without_a_critic_says_so() -> None:
    assert not GrpoConfig().make(max_tokens=64).requirements.critic


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_resample_rounds": 2}, "2 is above 0, but ppo trains its critic on all groups"),
        ({"advantage": "grpo"}, r"Input should be 'reinforce\+\+'"),
        ({"gamma": 0.0}, "greater than 0"),
        ({"lam": 1.1}, "less than or equal to 1"),
        ({"value_clip": -1}, "greater than or equal to 0"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        PpoConfig(**settings)
