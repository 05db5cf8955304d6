"""CISPO: the weight has no gradient, so the gradient is written out."""

import math

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
    each_token,
    in_each_stream,
    mixed,
    run,
    with_garbage,
)

from dojang.algos.cispo import CispoConfig

FLOOR, CAP = 0.7, 1.4
SETTINGS = CispoConfig(floor=FLOOR, cap=CAP)


def gradient(given: Batch) -> Array:
    """Of each token: its clipped ratio is a constant."""
    return each_token(given, lambda delta, credit: -min(max(math.exp(delta), FLOOR), CAP) * credit)


@pytest.mark.parametrize("seed", range(3))
def test_loss_and_gradient_agree_with_the_oracle(seed: int) -> None:
    given = mixed(seed=seed)
    found = run(SETTINGS, given)
    assert_same(found.loss, np.where(given.mask, gradient(given) * given.logp, 0.0))
    assert_same(found.gradient, gradient(given))


@pytest.mark.parametrize(
    ("ratio", "advantage", "slope", "cut"),
    [
        (2.0, 3.0, -4.2, 1),  # 1.4 * 3
        (2.0, -3.0, 4.2, 1),
        (0.5, 3.0, -2.1, 1),  # 0.7 * 3
        (0.5, -3.0, 2.1, 1),
        (1.2, 3.0, -3.6, 0),
        (0.8, -3.0, 2.4, 0),
        (2.0, 0.0, 0.0, 1),
    ],
)
def test_single_tokens_by_hand(ratio: float, advantage: float, slope: float, cut: int) -> None:
    logp = np.array([[-0.5]])
    one = Batch(logp, logp - math.log(ratio), logp, logp, np.array([[advantage]]), np.ones((1, 1), bool))
    found = run(SETTINGS, one)
    assert found.gradient.item() == pytest.approx(slope, rel=1e-12)
    assert found.loss.item() == pytest.approx(-0.5 * slope, rel=1e-12)
    assert found.figures["actor/pg_clipfrac"].item() == cut


def test_a_token_beyond_the_cap_keeps_a_gradient() -> None:
    found = run(CispoConfig(), batch([[math.log(100.0), math.log(1e6)]], [1.0]))
    assert_same(found.gradient, [[-5.0, -5.0]])


def test_without_a_floor_small_ratios_are_kept() -> None:
    assert_same(run(CispoConfig(), batch([[math.log(0.001)]], [2.0])).gradient, [[-0.002]], tolerance=1e-10)


def test_on_policy_the_gradient_is_that_of_reinforce() -> None:
    found = run(CispoConfig(), batch(np.zeros((2, 3)), [2.0, -1.5]))
    np.testing.assert_array_equal(found.gradient, [[-2.0] * 3, [1.5] * 3])


@with_garbage
@in_each_stream
def test_masked_tokens_contribute_no_loss_and_no_gradient(garbage: float, where: str) -> None:
    assert_garbage_is_ignored(CispoConfig(kl_coef=0.1), where, garbage)


def test_extreme_ratios_stay_finite() -> None:
    assert_extremes_stay_finite(CispoConfig(kl_coef=0.1))


def test_samples_without_advantage_teach_nothing() -> None:
    assert_nothing_is_learned_without_advantage(CispoConfig())


def test_defaults_are_the_published_ones() -> None:
    config = CispoConfig()
    assert (config.advantage, config.loss_aggregation, config.floor, config.cap) == ("grpo", "tokens", 0.0, 5.0)
    assert not config.make(max_tokens=64).requirements.limit
