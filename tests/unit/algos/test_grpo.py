"""The clipped surrogate against a few lines of numpy, gradients included; and what is made of it."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from oracles import (
    Array,
    Batch,
    Found,
    assert_extremes_stay_finite,
    assert_garbage_is_ignored,
    assert_near,
    assert_nothing_is_learned_without_advantage,
    assert_same,
    batch,
    clipped_surrogate,
    each_token,
    gradient_of,
    in_each_stream,
    mixed,
    run,
    with_garbage,
)

from dojang.algos.advantages import Estimator
from dojang.algos.grpo import (
    ClipConfig,
    DapoConfig,
    DrGrpoConfig,
    GdpoConfig,
    GrpoConfig,
    MaxRlConfig,
    ReinforceBaselineConfig,
    ReinforceConfig,
    RlooConfig,
)
from dojang.protocols import LossAggregation
from dojang.types import Group, Outcome, Sample, Verdict

LOW, HIGH = 0.2, 0.3
SETTINGS = GrpoConfig(clip_low=LOW, clip_high=HIGH)

# One row per advantage, one column per place of the ratio: below, at the lower side inside, at 1, inside, above.
RATIOS = np.array([0.5, 0.9, 1.0, 1.2, 1.7])
ADVANTAGES = np.array([2.0, -1.5])


def oracle(given: Batch, kl: float = 0.0, dual: float | None = None) -> Array:
    """The loss of each token, straight from the formula."""
    loss = each_token(given, lambda delta, credit: clipped_surrogate(math.exp(delta), credit, LOW, HIGH, dual))
    for place in given.tokens() if kl else ():
        gap = given.ref[place] - given.logp[place]
        loss[place] += kl * (np.exp(gap) - gap - 1)
    return loss


def run_with_kl(given: Batch, kl: float) -> Found:
    return run(SETTINGS.model_copy(update={"kl_coef": kl}), given)


@pytest.fixture
def grid() -> Batch:
    """All combinations of advantage and ratio."""
    return batch(np.log(np.tile(RATIOS, (2, 1))), ADVANTAGES)


@pytest.mark.parametrize("rewards", [(1.0, 0.0, 0.0), (1.5, 0.5, 0.25, 0.0), (0.1, 0.2), (3.0, -2.0, 0.0, 0.0, 1.0)])
def test_advantages_are_standardised_within_the_group(
    make_group: Callable[..., Group], rewards: tuple[float, ...]
) -> None:
    values = np.array(rewards)
    expected = (values - values.mean()) / (values.std(ddof=1) + 1e-6)
    (found,) = GrpoConfig().make(max_tokens=64).advantages([make_group(rewards)])
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_advantages_without_scale_are_distances_from_the_mean(make_group: Callable[..., Group]) -> None:
    found = DrGrpoConfig().make(max_tokens=64).advantages([make_group((1.0, 0.0, 0.5, 0.5))])
    assert found == [(0.5, -0.5, 0.0, 0.0)]


@pytest.mark.parametrize("advantage", ["grpo", "mean"])
@pytest.mark.parametrize("rewards", [(), (1.5,), (0.25, 0.25), (0.1,) * 7])
def test_rewards_that_do_not_differ_give_no_advantage(
    make_group: Callable[..., Group], rewards: tuple[float, ...], advantage: Estimator
) -> None:
    found = GrpoConfig(advantage=advantage).make(max_tokens=64).advantages([make_group(rewards)])
    assert found == [(0.0,) * len(rewards)]


def test_an_unjudged_sample_cannot_be_credited(
    make_group: Callable[..., Group], make_sample: Callable[..., Sample]
) -> None:
    group = make_group((1.0,))
    unjudged = make_sample(verdict=Verdict(Outcome.JUDGE_ERROR, None, detail="lost"))
    broken = Group(group.problem, 0, (*group.samples, unjudged))
    with pytest.raises(ValueError, match="must not be trained on"):
        GrpoConfig().make(max_tokens=64).advantages([broken])


def test_loss_and_gradient_agree_with_the_oracle(grid: Batch) -> None:
    found = run(SETTINGS, grid)
    assert_same(found.loss, oracle(grid))
    assert_near(found.gradient, gradient_of(oracle, grid))


@pytest.mark.parametrize("seed", range(3))
def test_loss_and_gradient_agree_with_the_oracle_on_samples_with_gaps(seed: int) -> None:
    given = mixed(seed=seed)
    found = run(SETTINGS, given)
    assert_same(found.loss, oracle(given))
    assert_near(found.gradient, gradient_of(oracle, given))


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.5, 2.0, -2.6, 0.0),  # 1.3 * 2
        (1.5, -2.0, 3.0, 3.0),
        (0.5, 2.0, -1.0, -1.0),
        (0.5, -2.0, 1.6, 0.0),  # 0.8 * 2
        (1.1, 3.0, -3.3, -3.3),
        (0.9, -3.0, 2.7, 2.7),
        (4.0, 0.0, 0.0, 0.0),
    ],
)
def test_single_tokens_by_hand(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    found = run(SETTINGS, batch([[math.log(ratio)]], [advantage]))
    assert found.loss.item() == pytest.approx(loss, rel=1e-12)
    assert found.gradient.item() == pytest.approx(gradient, rel=1e-12)


def test_clipping_cuts_the_gradient_on_the_far_side_only(grid: Batch) -> None:
    # Unclipped, the gradient of -ratio * A with respect to logp is -ratio * A.
    expected = -RATIOS[None, :] * ADVANTAGES[:, None]
    expected[0, 4] = 0.0  # a good answer that has become likely enough
    expected[1, 0] = 0.0  # a bad answer that has become unlikely enough
    assert_same(run(SETTINGS, grid).gradient, expected)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (5.0, -2.0, 6.0, 0.0),
        (2.0, -2.0, 4.0, 4.0),
        (0.5, -2.0, 1.6, 0.0),
        (5.0, 2.0, -2.6, 0.0),
        (0.5, 2.0, -1.0, -1.0),
    ],
)
def test_a_dual_clip_bounds_what_a_bad_token_costs(
    ratio: float, advantage: float, loss: float, gradient: float
) -> None:
    found = run(SETTINGS.model_copy(update={"dual_clip": 3.0}), batch([[math.log(ratio)]], [advantage]))
    assert found.loss.item() == pytest.approx(loss, rel=1e-12)
    assert found.gradient.item() == pytest.approx(gradient, rel=1e-12)
    assert found.figures["actor/pg_clipfrac"].item() == (gradient == 0.0)


@pytest.mark.parametrize("seed", range(3))
def test_a_dual_clip_agrees_with_the_oracle(seed: int) -> None:
    given = mixed(spread=1.5, seed=seed)
    found = run(SETTINGS.model_copy(update={"dual_clip": 2.0}), given)
    assert_same(found.loss, oracle(given, dual=2.0))
    assert_near(found.gradient, gradient_of(lambda at: oracle(at, dual=2.0), given))


def test_metrics_are_loss_kl_and_clip_fraction(grid: Batch) -> None:
    found = run(SETTINGS, grid)
    assert set(found.figures) == {"actor/pg_loss", "actor/ppo_kl", "actor/pg_clipfrac"}
    np.testing.assert_array_equal(found.figures["actor/pg_loss"], found.loss)
    assert_same(found.figures["actor/ppo_kl"], grid.old - grid.logp)
    np.testing.assert_array_equal(found.figures["actor/pg_clipfrac"], [[0, 0, 0, 0, 1], [1, 0, 0, 0, 0]])


def test_on_policy_the_loss_is_the_negative_advantage_and_nothing_is_clipped() -> None:
    found = run(SETTINGS, batch(np.zeros((2, 2)), ADVANTAGES))
    np.testing.assert_array_equal(found.loss, [[-2.0, -2.0], [1.5, 1.5]])
    np.testing.assert_array_equal(found.gradient, [[-2.0, -2.0], [1.5, 1.5]])
    assert not found.figures["actor/pg_clipfrac"].any()
    assert not found.figures["actor/ppo_kl"].any()


@with_garbage
@in_each_stream
def test_masked_tokens_contribute_no_loss_and_no_gradient(garbage: float, where: str) -> None:
    arrays = {
        "logp": np.array([[-1.0, -2.0, -1.5]] * 2),
        "old": np.array([[-1.1, -2.0, -1.2]] * 2),
        "behaviour": np.array([[-1.1, -2.0, -1.2]] * 2),
        "ref": np.array([[-1.0, -2.5, -1.5]] * 2),
        "advantage": np.repeat(ADVANTAGES[:, None], 3, axis=1),
    }
    clean = Batch(**arrays, mask=np.array([[True, False, True], [False, True, False]]))
    dirty = replace(clean, **{where: np.where(clean.mask, arrays[where], garbage)})
    found = run_with_kl(dirty, 0.1)
    assert_same(found.loss, oracle(clean, 0.1))
    np.testing.assert_array_equal(found.gradient, run_with_kl(clean, 0.1).gradient)
    assert not found.gradient[~clean.mask].any()
    assert_garbage_is_ignored(GrpoConfig(kl_coef=0.1, dual_clip=1.5), where, garbage)


@pytest.mark.parametrize("dual_clip", [None, 3.0])
def test_extreme_ratios_stay_finite(dual_clip: float | None) -> None:
    assert_extremes_stay_finite(GrpoConfig(kl_coef=0.1, dual_clip=dual_clip))


def test_samples_without_advantage_teach_nothing() -> None:
    assert_nothing_is_learned_without_advantage(GrpoConfig(dual_clip=3.0))


def test_the_kl_penalty_agrees_with_the_oracle(grid: Batch) -> None:
    found = run_with_kl(grid, 0.3)
    assert_same(found.loss, oracle(grid, 0.3))
    assert_near(found.gradient, gradient_of(lambda at: oracle(at, 0.3), grid))
    gap = grid.ref - grid.logp
    assert_same(found.figures["actor/kl_loss"], np.exp(gap) - gap - 1)


@pytest.mark.parametrize("move", [-1.0, -0.1, 0.1, 1.0])
def test_moving_away_from_the_reference_costs_and_the_gradient_leads_back(move: float) -> None:
    ref = np.array([[-2.0]])
    here = ref + move
    none, all_of_it = np.zeros((1, 1)), np.ones((1, 1), dtype=bool)
    at_reference = run_with_kl(Batch(ref, ref, ref, ref, none, all_of_it), 0.5)
    moved = run_with_kl(Batch(here, here, here, ref, none, all_of_it), 0.5)
    assert at_reference.loss.item() == 0.0
    assert not at_reference.gradient.any()
    assert moved.loss.item() > 0.0
    assert np.sign(moved.gradient.item()) == np.sign(move)  # a step against the gradient goes towards the reference


@pytest.mark.parametrize(("kl", "needed"), [(0.0, False), (1e-3, True)])
def test_a_reference_is_needed_only_with_a_kl_term(kl: float, needed: bool) -> None:
    assert GrpoConfig(kl_coef=kl).make(max_tokens=64).requirements.reference is needed


@pytest.mark.parametrize(
    ("config", "advantage", "average", "low", "high"),
    [
        (GrpoConfig(), "grpo", "tokens", 0.2, 0.2),
        (DrGrpoConfig(), "mean", "constant", 0.2, 0.2),
        (RlooConfig(), "rloo", "tokens", 0.2, 0.2),
        (ReinforceConfig(), "reinforce++", "tokens", 0.2, 0.2),
        (ReinforceBaselineConfig(), "reinforce++-baseline", "tokens", 0.2, 0.2),
        (MaxRlConfig(), "maxrl", "tokens", 0.2, 0.2),
        (GdpoConfig(), "gdpo", "tokens", 0.2, 0.2),
        (DapoConfig(), "grpo", "tokens", 0.2, 0.28),
    ],
)
def test_defaults_are_the_published_ones(
    config: ClipConfig, advantage: Estimator, average: LossAggregation, low: float, high: float
) -> None:
    assert (config.advantage, config.loss_aggregation, config.clip_low, config.clip_high) == (
        advantage,
        average,
        low,
        high,
    )
    assert (config.dual_clip, config.kl_coef, config.kl_estimator, config.corrections) == (None, 0.0, "k3", ())
    shaped = (0.2, 3) if config.name == "dapo" else (0.0, 0)  # type: ignore[attr-defined]  # each preset has a name
    assert (config.overlong_buffer_fraction, config.max_resample_rounds) == shaped
    assert (config.overlong_penalty, config.reward_weights) == (1.0, {})
    made = config.make(max_tokens=64)
    assert (
        made.loss_aggregation,
        made.requirements.reference,
        made.requirements.old_logprobs,
        made.requirements.limit,
    ) == (
        average,
        False,
        False,
        False,
    )
