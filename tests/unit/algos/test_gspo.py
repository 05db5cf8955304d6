"""GSPO against the sequence's own loss, whose gradient each token carries its share of."""

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
    clipped_surrogate,
    gradient_of,
    in_each_stream,
    mixed,
    run,
    with_garbage,
)

from dojang.algos.gspo import GspoConfig

LOW, HIGH = 0.1, 0.15
SETTINGS = GspoConfig(clip_low=LOW, clip_high=HIGH)


def sequence_ratio(given: Batch, row: int) -> float:
    gaps = [given.logp[place] - given.old[place] for place in given.tokens() if place[0] == row]
    return math.exp(sum(gaps) / len(gaps))


def oracle(given: Batch) -> Array:
    """Every token has the loss of its sequence. The sum's gradient: T tokens, each with 1/T of s in it."""
    loss = np.zeros_like(given.logp)
    for place in given.tokens():
        loss[place] = clipped_surrogate(sequence_ratio(given, place[0]), float(given.advantage[place]), LOW, HIGH)
    return loss


def analytic_gradient(given: Batch) -> Array:
    gradient = np.zeros_like(given.logp)
    for place in given.tokens():
        ratio, advantage = sequence_ratio(given, place[0]), given.advantage[place]
        clipped = (advantage > 0 and ratio > 1 + HIGH) or (advantage < 0 and ratio < 1 - LOW)
        gradient[place] = 0.0 if clipped else -ratio * advantage
    return gradient


@pytest.mark.parametrize("seed", range(5))
def test_loss_and_gradient_agree_with_the_oracle(seed: int) -> None:
    given = mixed(seed=seed)
    found = run(SETTINGS, given)
    assert_same(found.loss, oracle(given))
    assert_same(found.gradient, analytic_gradient(given))
    assert_near(found.gradient, gradient_of(oracle, given))


def test_some_of_these_sequences_are_clipped_and_some_are_not() -> None:
    batches = [mixed(seed=seed) for seed in range(5)]
    cut = np.concatenate([run(SETTINGS, given).figures["actor/pg_clipfrac"][given.mask] for given in batches])
    assert 0 < cut.mean() < 1


@pytest.mark.parametrize(
    ("advantage", "high", "loss", "gradient"),
    [
        (2.0, 0.2, -2.2103418361512953, -2.2103418361512953),  # exp(0.1) = 1.1051709...
        (2.0, 0.05, -2.1, 0.0),
        (-2.0, 0.05, 2.2103418361512953, 2.2103418361512953),
        (0.0, 0.05, 0.0, 0.0),
    ],
)
def test_a_sequence_by_hand(advantage: float, high: float, loss: float, gradient: float) -> None:
    given = batch([[0.3, 9.0, -0.1]], [advantage], [[True, False, True]])  # the mean of 0.3 and -0.1 is 0.1
    found = run(GspoConfig(clip_low=0.2, clip_high=high), given)
    np.testing.assert_allclose(found.loss, [[loss, 0.0, loss]], rtol=1e-12)
    np.testing.assert_allclose(found.gradient, [[gradient, 0.0, gradient]], rtol=1e-12)


def test_a_bad_sequence_that_has_become_unlikely_is_cut() -> None:
    given = batch([[-0.5, 0.1]], [-2.0])  # exp(-0.2) = 0.8187 is below 0.9
    found = run(SETTINGS, given)
    assert_same(found.loss, [[1.8, 1.8]])
    assert not found.gradient.any()
    np.testing.assert_array_equal(found.figures["actor/pg_clipfrac"], [[1, 1]])


def test_a_token_far_off_is_not_clipped_where_its_sequence_is_not() -> None:
    given = batch([[1.0, -1.0, 0.02, 0.0]], [1.5])  # as single tokens, the first would be
    ratio = math.exp(0.005)
    assert_same(run(SETTINGS, given).gradient, np.full((1, 4), -1.5 * ratio))


def test_each_token_may_have_its_own_advantage() -> None:
    given = batch([[0.1, -0.02, 0.01]], [[1.0, -2.0, 0.0]])
    ratio = math.exp(0.03)
    found = run(SETTINGS, given)
    assert_same(found.loss, [[-ratio, 2 * ratio, 0.0]])
    assert_same(found.gradient, [[-ratio, 2 * ratio, 0.0]])


def test_on_policy_the_gradient_is_the_negative_advantage() -> None:
    found = run(GspoConfig(), batch(np.zeros((2, 3)), [2.0, -1.5]))
    np.testing.assert_array_equal(found.loss, [[-2.0] * 3, [1.5] * 3])
    np.testing.assert_array_equal(found.gradient, [[-2.0] * 3, [1.5] * 3])


def test_other_sequences_and_padding_do_not_matter() -> None:
    given = mixed()
    whole = run(SETTINGS, given)
    for row in range(len(given.logp)):
        alone = run(SETTINGS, given.rows(row, row + 1))
        np.testing.assert_array_equal(alone.loss[0], whole.loss[row])
        np.testing.assert_array_equal(alone.gradient[0], whole.gradient[row])


@pytest.mark.parametrize("far", [-25.0, 25.0])
def test_a_token_very_far_off_counts_in_full_towards_its_sequence(far: float) -> None:
    given = batch([[far, *([0.0] * 99)]], [-1.0 if far > 0 else 1.0])  # exp(0.25) or exp(-0.25), not clipped
    found = run(SETTINGS, given)
    assert_same(found.loss, oracle(given))
    assert_same(found.gradient, analytic_gradient(given))


@with_garbage
@in_each_stream
def test_masked_tokens_contribute_no_loss_and_no_gradient(garbage: float, where: str) -> None:
    assert_garbage_is_ignored(GspoConfig(clip_low=LOW, clip_high=HIGH, kl_coef=0.1), where, garbage)


def test_extreme_ratios_stay_finite() -> None:
    assert_extremes_stay_finite(GspoConfig(kl_coef=0.1))


def test_samples_without_advantage_teach_nothing() -> None:
    assert_nothing_is_learned_without_advantage(GspoConfig())


def test_defaults_are_the_published_ones() -> None:
    config = GspoConfig()
    assert (config.advantage, config.loss_aggregation) == ("grpo", "sequences")
    assert (config.clip_low, config.clip_high, config.dual_clip) == (3e-4, 4e-4, None)
    assert not config.make(max_tokens=64).requirements.limit


def test_ratios_are_to_what_the_trainer_thought() -> None:
    """Its clip is narrower than the rounding of an engine in half precision."""
    assert GspoConfig().make(max_tokens=64).requirements.old_logprobs
