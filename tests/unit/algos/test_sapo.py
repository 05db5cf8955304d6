"""SAPO's soft gate, by its formula and by differences."""

import math

import numpy as np
import pytest
from oracles import (
    Array,
    Batch,
    assert_extremes_stay_finite,
    assert_garbage_is_ignored,
    assert_near,
    assert_nothing_is_learned_without_advantage,
    assert_same,
    batch,
    each_token,
    gradient_of,
    in_each_stream,
    mixed,
    run,
    with_garbage,
)

from dojang.algos.sapo import SapoConfig

GOOD, BAD = 0.75, 2.5
SETTINGS = SapoConfig(tau_good=GOOD, tau_bad=BAD)


def gated(delta: float, advantage: float, good: float, bad: float) -> float:
    tau = good if advantage > 0 else bad
    return -4 / tau / (1 + math.exp(-tau * (math.exp(delta) - 1))) * advantage


def oracle(given: Batch) -> Array:
    return each_token(given, lambda delta, credit: gated(delta, credit, GOOD, BAD))


@pytest.mark.parametrize("seed", range(3))
def test_loss_and_gradient_agree_with_the_oracle(seed: int) -> None:
    given = mixed(spread=0.7, seed=seed)
    found = run(SETTINGS, given)
    assert_same(found.loss, oracle(given))
    assert_near(found.gradient, gradient_of(oracle, given))


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        # sigmoid(1) = 0.7310585786, times its complement 0.1966119332
        (2.0, 1.0, -2.9242343145, -1.5728954660),  # 4 * 0.7311; 4 * 0.1966 * ratio
        (1.5, -1.0, 1.4621171573, 1.1796715996),  # tau 2: 2 * 0.7311; 4 * 0.1966 * ratio
        (1.0, 3.0, -6.0, -3.0),  # 4 * 0.5 * 3
        (1.0, -3.0, 3.0, 3.0),  # 2 * 0.5 * 3
        (2.0, 0.0, 0.0, 0.0),
    ],
)
def test_single_tokens_by_hand(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    found = run(SapoConfig(tau_good=1.0, tau_bad=2.0), batch([[math.log(ratio)]], [advantage]))
    assert found.loss.item() == pytest.approx(loss, abs=1e-9)
    assert found.gradient.item() == pytest.approx(gradient, abs=1e-9)


@pytest.mark.parametrize("tau", [0.5, 1.0, 4.0])
def test_on_policy_the_gradient_is_the_negative_advantage_whatever_tau(tau: float) -> None:
    found = run(SapoConfig(tau_good=tau, tau_bad=tau), batch(np.zeros((2, 3)), [2.0, -1.5]))
    assert_same(found.gradient, [[-2.0] * 3, [1.5] * 3])


def test_the_further_off_the_less_a_token_learns_relative_to_its_ratio() -> None:
    ratios = np.array([1.0, 1.5, 2.0, 4.0, 8.0])
    weight = -run(SETTINGS, batch([np.log(ratios)], [1.0])).gradient[0] / ratios
    assert weight[0] == pytest.approx(1.0, rel=1e-12)
    assert (np.diff(weight) < 0).all()
    assert weight[-1] < 0.03


def test_tau_is_not_rounded_to_single_precision() -> None:
    given = batch([[-0.5, 0.0, 0.5, 1.0]] * 2, [1.0, -1.0])
    oracle = each_token(given, lambda delta, credit: gated(delta, credit, 0.95, 1.05))
    assert_same(run(SapoConfig(tau_good=0.95, tau_bad=1.05), given).loss, oracle)


@with_garbage
@in_each_stream
def test_masked_tokens_contribute_no_loss_and_no_gradient(garbage: float, where: str) -> None:
    assert_garbage_is_ignored(SapoConfig(kl_coef=0.1), where, garbage)


def test_extreme_ratios_stay_finite() -> None:
    assert_extremes_stay_finite(SapoConfig(kl_coef=0.1))


def test_samples_without_advantage_teach_nothing() -> None:
    assert_nothing_is_learned_without_advantage(SapoConfig())


def test_defaults_are_the_published_ones() -> None:
    config = SapoConfig()
    assert (config.advantage, config.loss_aggregation, config.tau_good, config.tau_bad) == (
        "grpo",
        "sequences",
        1.0,
        1.05,
    )
    assert not config.make(max_tokens=64).requirements.limit
