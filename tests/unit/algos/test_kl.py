"""Estimates of the KL as penalties: values, gradients, and what they come to on average."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from oracles import (
    Array,
    Batch,
    Found,
    assert_extremes_stay_finite,
    assert_garbage_is_ignored,
    assert_near,
    assert_same,
    batch,
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
from dojang.algos.kl import Estimator
from dojang.protocols import TokenBatch

WEIGHT = 0.3
ESTIMATORS: tuple[Estimator, ...] = ("k1", "k2", "k3", "k3+")
VALUE: dict[Estimator, Callable[[float], float]] = {
    "k1": lambda d: d,
    "k2": lambda d: d * d / 2,
    "k3": lambda d: math.exp(-d) - 1 + d,
    "k3+": lambda d: math.exp(-d) - 1 + d,
}
SLOPE: dict[Estimator, Callable[[float], float]] = {
    "k1": lambda d: 1.0,
    "k2": lambda d: d,
    "k3": lambda d: 1 - math.exp(-d),
    "k3+": lambda d: d,
}


def oracle(given: Batch, formula: Callable[[float], float]) -> Array:
    """A formula of log policy - log reference, at each token."""
    return each_token(replace(given, old=given.ref), lambda gap, _: formula(gap))


def penalty(estimator: Estimator, given: Batch) -> Found:
    """Without anything else to learn."""
    nothing = np.zeros_like(given.advantage)
    return run(GrpoConfig(kl_coef=WEIGHT, kl_estimator=estimator), replace(given, advantage=nothing))


def apart(*gaps: float) -> Batch:
    """Tokens whose log policy - log reference is this."""
    given = batch([gaps], [0.0])
    return replace(given, ref=given.logp - np.array([gaps]))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_value_and_gradient_agree_with_the_formula(estimator: Estimator) -> None:
    given = mixed()
    found = penalty(estimator, given)
    assert_same(found.figures["actor/kl_loss"], oracle(given, VALUE[estimator]))
    assert_same(found.loss, WEIGHT * oracle(given, VALUE[estimator]))
    assert_same(found.gradient, WEIGHT * oracle(given, SLOPE[estimator]))


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_gradient_is_that_of_the_value(estimator: Estimator) -> None:
    given = mixed()
    numeric = gradient_of(lambda at: WEIGHT * oracle(at, VALUE[estimator]), given)
    assert_near(penalty(estimator, given).gradient, numeric)


@pytest.mark.parametrize(
    ("estimator", "values", "slopes"),
    [
        ("k1", (0.5, -0.5, 0.0), (1.0, 1.0, 1.0)),
        ("k2", (0.125, 0.125, 0.0), (0.5, -0.5, 0.0)),
        ("k3", (0.10653066, 0.14872127, 0.0), (0.39346934, -0.64872127, 0.0)),
        ("k3+", (0.10653066, 0.14872127, 0.0), (0.5, -0.5, 0.0)),
    ],
)
def test_half_above_and_half_below_by_hand(
    estimator: Estimator, values: tuple[float, ...], slopes: tuple[float, ...]
) -> None:
    found = penalty(estimator, apart(0.5, -0.5, 0.0))
    np.testing.assert_allclose(found.loss, [WEIGHT * np.array(values)], atol=1e-8)
    np.testing.assert_allclose(found.gradient, [WEIGHT * np.array(slopes)], atol=1e-8)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_penalty_is_added_to_what_else_there_is_to_learn(estimator: Estimator) -> None:
    given = mixed()
    plain, alone = run(GrpoConfig(), given), penalty(estimator, given)
    both = run(GrpoConfig(kl_coef=WEIGHT, kl_estimator=estimator), given)
    assert_same(both.loss, plain.loss + alone.loss)
    assert_same(both.gradient, plain.gradient + alone.gradient)
    assert_same(both.figures["actor/pg_loss"][given.mask], plain.loss[given.mask])


class TestOnAverage:
    """Over a distribution of four tokens, each counted as often as the policy draws it."""

    SCORES = np.array([0.3, -1.0, 0.8, 0.1])
    REFERENCE = np.log(np.array([0.4, 0.3, 0.2, 0.1]))

    @staticmethod
    def policy(scores: Array) -> Array:
        return np.asarray(scores - np.log(np.exp(scores).sum()))

    @classmethod
    def kl_divergence(cls, scores: Array) -> float:
        logp = cls.policy(scores)
        return float((np.exp(logp) * (logp - cls.REFERENCE)).sum())

    def found(self, estimator: Estimator) -> tuple[float, Array]:
        """The mean of the estimate, and of the gradient with respect to the scores that it leads to."""
        logp = self.policy(self.SCORES)
        p = np.exp(logp)
        given = Batch(*(logp[None],) * 3, self.REFERENCE[None], np.zeros((1, 4)), np.ones((1, 4), bool))
        found = run(GrpoConfig(kl_coef=1.0, kl_estimator=estimator), given)
        slopes = (np.eye(4) - p) * found.gradient[0][:, None]  # of log p_token with respect to the scores
        return float(p @ found.loss[0]), p @ slopes

    @pytest.mark.parametrize("estimator", ["k1", "k3", "k3+"])
    def test_the_value_is_the_divergence(self, estimator: Estimator) -> None:
        assert self.found(estimator)[0] == pytest.approx(self.kl_divergence(self.SCORES), rel=1e-12)

    @pytest.mark.parametrize("estimator", ["k2", "k3+"])
    def test_the_gradient_is_that_of_the_divergence(self, estimator: Estimator) -> None:
        assert_near(self.found(estimator)[1], numeric_gradient(self.kl_divergence, self.SCORES))

    def test_the_gradient_of_k1_is_nothing(self) -> None:
        np.testing.assert_allclose(self.found("k1")[1], 0.0, atol=1e-15)

    def test_the_gradient_of_k3_is_not_that_of_the_kl(self) -> None:
        numeric = numeric_gradient(self.kl_divergence, self.SCORES)
        assert not np.allclose(self.found("k3")[1], numeric, rtol=0.01)


@with_garbage
@in_each_stream
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_masked_tokens_contribute_no_loss_and_no_gradient(garbage: float, where: str, estimator: Estimator) -> None:
    assert_garbage_is_ignored(GrpoConfig(kl_coef=0.1, kl_estimator=estimator), where, garbage)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_extreme_ratios_stay_finite(estimator: Estimator) -> None:
    assert_extremes_stay_finite(GrpoConfig(kl_coef=0.1, kl_estimator=estimator))


@pytest.mark.parametrize(
    ("estimator", "gap"), [("k1", 30.0), ("k1", -30.0), ("k2", 30.0), ("k2", -30.0), ("k3", 30.0), ("k3+", 30.0)]
)
def test_the_penalty_leads_back_from_very_far_away(estimator: Estimator, gap: float) -> None:
    found = penalty(estimator, apart(gap))  # none of these comes near to overflowing
    assert found.loss.item() == pytest.approx(WEIGHT * VALUE[estimator](gap), rel=1e-12)
    assert found.gradient.item() == pytest.approx(WEIGHT * SLOPE[estimator](gap), rel=1e-12)


@pytest.mark.numerical
def test_the_bias_corrected_gradient_is_that_of_the_kl_itself() -> None:
    """Expectations over a whole vocabulary, off-policy: sum over tokens of old(v) times the gradient of r(v) k3(v)."""
    torch.manual_seed(0)
    old, ref = torch.randn(2, 9, dtype=torch.float64).log_softmax(-1)
    scores = torch.randn(9, dtype=torch.float64, requires_grad=True)
    exact = (scores.softmax(-1) * (scores.log_softmax(-1) - ref)).sum()
    (wanted,) = torch.autograd.grad(exact, scores)
    token = torch.arange(9)[:, None]
    for estimator in ("k1", "k3"):
        config = GrpoConfig(kl_coef=1.0, kl_estimator=estimator, use_bias_correction_kl=True)
        tokens = TokenBatch(
            logp_BT=scores.log_softmax(-1)[token],
            old_logp_BT=old[token],
            behaviour_logp_BT=old[token],
            ref_logp_BT=ref[token],
            advantage_BT=torch.zeros(9, 1, dtype=torch.float64),
            mask_BT=torch.ones(9, 1, dtype=torch.bool),
        )
        found = config.make(9).loss(tokens)
        mean = (old.exp() * found.loss_BT[:, 0]).sum()
        assert mean.item() == pytest.approx(exact.item(), abs=1e-12)
        (gradient,) = torch.autograd.grad(mean, scores)
        torch.testing.assert_close(gradient, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"use_bias_correction_kl": True}, "set kl_coef above 0"),
        ({"use_bias_correction_kl": True, "kl_coef": 0.1, "kl_estimator": "k3+"}, "use k1 or k3"),
        ({"kl_in_reward": 0.1, "max_resample_rounds": 2}, "set max_resample_rounds to 0"),
        ({"kl_in_reward": 0.1, "advantage": "maxrl"}, "cannot be combined with advantage=maxrl"),
    ],
)
def test_kl_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        GrpoConfig(**settings)
