"""DPPO-TV: what is cut depends on probabilities; weights have no gradient, so it is written out."""

import math
from dataclasses import replace

import numpy as np
import pytest
from oracles import (
    Array,
    Batch,
    assert_extremes_stay_finite,
    assert_garbage_is_ignored,
    assert_nothing_is_learned_without_advantage,
    assert_same,
    batch,
    gradient_of,
    in_each_stream,
    mixed,
    run,
    with_garbage,
)

from dojang.algos.dppo import DppoConfig
from dojang.algos.grpo import GrpoConfig
from dojang.algos.policy_gradient import PolicyGradientConfig
from dojang.algos.ppo import PpoConfig

LOW, HIGH, CAP, PULL = 0.05, 0.08, 1.6, 0.25
SETTINGS = DppoConfig(low=LOW, high=HIGH, cap=CAP, pull=PULL)


def weight(given: Batch) -> Array:
    weights = np.zeros_like(given.logp)
    for place in given.tokens():
        now, then, advantage = np.exp(given.logp[place]), np.exp(given.old[place]), given.advantage[place]
        cut = (advantage > 0 and now - then > HIGH) or (advantage < 0 and now - then < -LOW)
        weights[place] = 0.0 if cut else min(now / then, CAP)
    return weights


def token(now: float, then: float, advantage: float) -> Batch:
    """One whose probability is and was this."""
    logp, old = np.array([[math.log(now)]]), np.array([[math.log(then)]])
    return Batch(logp, old, old, old, np.array([[advantage]]), np.ones((1, 1), bool))


@pytest.mark.parametrize("seed", range(3))
def test_loss_and_gradient_agree_with_the_oracle(seed: int) -> None:
    given = mixed(seed=seed)
    weights = weight(given)
    found = run(SETTINGS, given)
    policy = np.where(given.mask, -weights * given.advantage * given.logp, 0.0)
    assert_same(found.loss, policy + PULL * given.delta**2)
    assert_same(found.gradient, -weights * given.advantage + 2 * PULL * given.delta)


def test_with_its_weights_held_the_gradient_is_that_of_the_loss() -> None:
    given = mixed()
    weights = weight(given)

    def oracle(at: Batch) -> Array:
        return np.where(at.mask, -weights * at.advantage * at.logp + PULL * (at.logp - at.old) ** 2, 0.0)

    np.testing.assert_allclose(run(SETTINGS, given).gradient, gradient_of(oracle, given), atol=1e-7)


@pytest.mark.parametrize(
    ("now", "then", "advantage", "slope"),
    [
        (0.5, 0.2, 2.0, 0.0),  # has gained 0.3
        (0.5, 0.2, -2.0, 5.0),  # 2.5 * 2
        (0.2, 0.5, -2.0, 0.0),  # has lost 0.3
        (0.2, 0.5, 2.0, -0.8),  # 0.4 * 2
        (0.3, 0.2, 2.0, -3.0),  # has gained 0.1 only, for all that its ratio is 1.5
        (0.01, 0.05, -2.0, 0.4),  # has lost 0.04 only, for all that its ratio is 0.2
        (0.5, 0.01, -2.0, 40.0),  # 20 * 2: its ratio is 50
        (0.1, 0.001, 2.0, -40.0),  # likewise 100, but it has gained 0.099 only
        (0.9, 0.1, 0.0, 0.0),
    ],
)
def test_single_tokens_by_hand(now: float, then: float, advantage: float, slope: float) -> None:
    found = run(DppoConfig(), token(now, then, advantage))
    assert found.gradient.item() == pytest.approx(slope, rel=1e-12)
    assert found.loss.item() == pytest.approx(slope * math.log(now), rel=1e-12)
    assert found.figures["actor/pg_clipfrac"].item() == (slope == 0.0 and advantage != 0.0)


@pytest.mark.parametrize(("advantage", "gradient"), [(2.0, 1.8325814637483102), (-2.0, 6.832581463748310)])
def test_the_pull_is_there_where_the_rest_is_cut(advantage: float, gradient: float) -> None:
    # log 2.5 = 0.91629073187; the pull is its square, with twice it as gradient; uncut there is 2.5 * 2 beside it
    found = run(DppoConfig(pull=1.0), token(0.5, 0.2, advantage))
    assert found.gradient.item() == pytest.approx(gradient, rel=1e-12)
    policy = 0.0 if advantage > 0 else 5.0 * math.log(0.5)
    assert found.loss.item() == pytest.approx(policy + 0.8395887053184748, rel=1e-12)


def test_both_sides_have_their_own_limit() -> None:
    given = Batch(*(np.log([[0.65, 0.35]]), np.log([[0.5, 0.5]])) * 2, np.array([[1.0, -1.0]]), np.ones((1, 2), bool))
    assert_same(run(DppoConfig(low=0.1, high=0.2), given).gradient, [[-1.3, 0.0]])
    assert_same(run(DppoConfig(low=0.2, high=0.1), given).gradient, [[0.0, 0.7]])


def test_probabilities_are_compared_with_the_old_policy() -> None:
    given = token(0.5, 0.45, 1.0)
    engine = Batch(given.logp, given.old, np.log([[0.01]]), given.ref, given.advantage, given.mask)
    assert_same(run(DppoConfig(), engine).gradient, run(DppoConfig(), given).gradient)


def test_on_policy_the_gradient_is_that_of_reinforce() -> None:
    found = run(DppoConfig(pull=1.0), batch(np.zeros((2, 3)), [2.0, -1.5]))
    np.testing.assert_array_equal(found.gradient, [[-2.0] * 3, [1.5] * 3])


@with_garbage
@in_each_stream
def test_masked_tokens_contribute_no_loss_and_no_gradient(garbage: float, where: str) -> None:
    assert_garbage_is_ignored(DppoConfig(kl_coef=0.1, pull=0.1), where, garbage)


def test_extreme_ratios_stay_finite() -> None:
    assert_extremes_stay_finite(DppoConfig(kl_coef=0.1, pull=0.1))


@pytest.mark.parametrize("far", [-30.0, 30.0])
def test_the_pull_leads_back_from_very_far_away(far: float) -> None:
    given = batch([[far]], [0.0])
    found = run(DppoConfig(pull=0.5), given)
    assert_same(found.loss, 0.5 * given.delta**2)
    assert_same(found.gradient, given.delta)


def test_samples_without_advantage_teach_nothing() -> None:
    assert_nothing_is_learned_without_advantage(DppoConfig())


def test_defaults_are_the_published_ones() -> None:
    config = DppoConfig()
    assert (config.advantage, config.loss_aggregation) == ("grpo", "tokens")
    assert (config.low, config.high, config.cap, config.pull) == (0.2, 0.2, 20.0, 0.0)
    assert not config.make(max_tokens=64).requirements.limit


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (DppoConfig(), False),
        (DppoConfig(pull=0.1), True),
        (DppoConfig(kl_coef=0.1), True),
        (GrpoConfig(), False),
        (GrpoConfig(kl_coef=0.1), True),
        (PpoConfig(), True),
    ],
)
def test_a_sample_without_advantage_is_trained_on_exactly_if_it_has_a_gradient(
    config: PolicyGradientConfig, expected: bool
) -> None:
    assert config.make(max_tokens=64).requirements.zero_advantage is expected
    if not isinstance(config, PpoConfig):  # its critic has a gradient of its own
        given = mixed(seed=1)  # with seed 0 the reference is the policy
        found = run(config, replace(given, advantage=np.zeros_like(given.advantage)))
        assert bool(found.gradient.any()) is expected
