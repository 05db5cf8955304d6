"""Corrections, sample by sample in plain Python; they weigh the policy's loss and its gradient, and nothing else."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from oracles import (
    Array,
    Batch,
    assert_extremes_stay_finite,
    assert_garbage_is_ignored,
    assert_nothing_is_learned_without_advantage,
    assert_same,
    batch,
    in_each_stream,
    mixed,
    run,
    token_batch,
    with_garbage,
)
from pydantic import ValidationError

from dojang.algos.cispo import CispoConfig
from dojang.algos.grpo import GrpoConfig
from dojang.algos.gspo import GspoConfig
from dojang.algos.importance_correction import (
    Correction,
    Geometric,
    IcePop,
    Opsm,
    SequenceMis,
    SequenceRejection,
    SequenceTis,
    TokenRejection,
    TokenTis,
)
from dojang.algos.policy_gradient import PolicyGradientConfig

Weigh = Callable[[list[float], list[float], float], list[float]]
"""From the log old/engine and log engine/policy of a sample's tokens, and its advantage, the weights of its tokens."""


def token_tis(rho: list[float], left: list[float], advantage: float) -> list[float]:
    return [min(math.exp(each), 1.2) for each in rho]


def sequence_tis(rho: list[float], left: list[float], advantage: float) -> list[float]:
    return [min(math.exp(sum(rho)), 1.3)] * len(rho)


def sequence_mis(rho: list[float], left: list[float], advantage: float) -> list[float]:
    return [math.exp(sum(rho)) if math.exp(sum(rho)) <= 1.5 else 0.0] * len(rho)


def sequence_rejection(rho: list[float], left: list[float], advantage: float) -> list[float]:
    return [1.0 if math.exp(sum(rho)) <= 1.5 else 0.0] * len(rho)


def geometric(rho: list[float], left: list[float], advantage: float) -> list[float]:
    return [1.0 if 0.9 <= math.exp(sum(rho) / len(rho)) <= 1.1 else 0.0] * len(rho)


def icepop(rho: list[float], left: list[float], advantage: float) -> list[float]:
    return [math.exp(each) if 0.8 <= math.exp(each) <= 1.3 else 0.0 for each in rho]


def token_rejection(rho: list[float], left: list[float], advantage: float) -> list[float]:
    return [1.0 if 0.8 <= math.exp(each) <= 1.3 else 0.0 for each in rho]


def opsm(rho: list[float], left: list[float], advantage: float) -> list[float]:
    return [0.0 if advantage < 0 and sum(left) / len(left) > 0.1 else 1.0] * len(rho)


CASES: list[tuple[Correction, Weigh]] = [
    (TokenTis(cap=1.2), token_tis),
    (SequenceTis(cap=1.3), sequence_tis),
    (SequenceMis(cap=1.5), sequence_mis),
    (SequenceRejection(cap=1.5), sequence_rejection),
    (Geometric(low=0.9, high=1.1), geometric),
    (IcePop(low=0.8, high=1.3), icepop),
    (TokenRejection(low=0.8, high=1.3), token_rejection),
    (Opsm(delta=0.1), opsm),
]
each_correction = pytest.mark.parametrize(("correction", "weigh"), CASES, ids=[each.name for each, _ in CASES])
ALL = tuple(each for each, _ in CASES)


def weights(given: Batch, weigh: Weigh) -> Array:
    """1 outside the mask."""
    found = np.ones_like(given.logp)
    for row, mask in enumerate(given.mask):
        if mask.any():
            rho = (given.old - given.behaviour)[row][mask].tolist()
            left = (given.behaviour - given.logp)[row][mask].tolist()
            found[row, mask] = weigh(rho, left, float(given.advantage[row][mask][0]))
    return found


def off(rho: list[float], advantage: float = 1.0, moved: float = 0.0) -> Batch:
    """One sample whose old policy and engine differ by these log-ratios, and which has moved by so much since."""
    given = batch([[moved] * len(rho)], [advantage])
    return replace(given, behaviour=given.old - np.array([rho]))


def weight_of(correction: Correction, given: Batch) -> list[float]:
    found = run(GrpoConfig(old_logprobs="trainer", corrections=(correction,)), given)
    values: list[float] = found.figures[f"actor/correction/{correction.name}"][0].tolist()
    return values


@each_correction
@pytest.mark.parametrize("seed", range(4))
def test_loss_and_gradient_are_weighed(correction: Correction, weigh: Weigh, seed: int) -> None:
    given = mixed(seed=seed)
    expected = weights(given, weigh)
    plain, found = run(GrpoConfig(), given), run(GrpoConfig(old_logprobs="trainer", corrections=(correction,)), given)
    assert_same(found.loss, plain.loss * expected)
    assert_same(found.gradient, plain.gradient * expected)
    assert_same(found.figures[f"actor/correction/{correction.name}"][given.mask], expected[given.mask])
    assert_same(found.figures["actor/pg_loss"], plain.figures["actor/pg_loss"])


@each_correction
def test_weights_differ_between_the_samples(correction: Correction, weigh: Weigh) -> None:
    values = np.concatenate([weights(mixed(seed=seed), weigh)[mixed(seed=seed).mask] for seed in range(4)])
    assert values.min() < values.max()


@pytest.mark.parametrize("config", [GrpoConfig(), GspoConfig(), CispoConfig()], ids=lambda config: config.name)
def test_several_corrections_are_multiplied(config: PolicyGradientConfig) -> None:
    given = mixed(seed=2)
    expected = weights(given, token_tis) * weights(given, icepop) * weights(given, opsm)
    chosen = (TokenTis(cap=1.2), IcePop(low=0.8, high=1.3), Opsm(delta=0.1))
    plain, found = run(config, given), run(config.model_copy(update={"corrections": chosen}), given)
    assert_same(found.loss, plain.loss * expected)
    assert_same(found.gradient, plain.gradient * expected)


@each_correction
def test_the_kl_penalty_is_not_weighed(correction: Correction, weigh: Weigh) -> None:
    given = mixed(seed=1)
    expected = weights(given, weigh)
    without, plain = run(GrpoConfig(), given), run(GrpoConfig(kl_coef=0.3), given)
    found = run(GrpoConfig(kl_coef=0.3, old_logprobs="trainer", corrections=(correction,)), given)
    assert_same(found.loss, without.loss * expected + (plain.loss - without.loss))
    assert_same(found.gradient, without.gradient * expected + (plain.gradient - without.gradient), tolerance=1e-11)


@each_correction
def test_weights_have_no_gradient(correction: Correction, weigh: Weigh) -> None:
    given = mixed()
    leaf, old = torch.tensor(given.logp, requires_grad=True), torch.tensor(given.old, requires_grad=True)
    assert not correction.weight(replace(token_batch(given, leaf), old_logp_BT=old)).requires_grad


def test_token_tis_by_hand() -> None:
    given = off([math.log(1.5), math.log(3.0), math.log(0.25), 0.0])
    assert weight_of(TokenTis(), given) == pytest.approx([1.5, 2.0, 0.25, 1.0], rel=1e-12)


@pytest.mark.parametrize(
    ("rho", "kept"), [([2.0, 2.0], 0.0), ([2.0, 1.4], 1.0), ([8.0, 0.25], 1.0), ([0.01, 0.01], 1.0), ([3.1], 0.0)]
)
def test_sequences_by_hand(rho: list[float], kept: float) -> None:
    """Masked importance sampling keeps the weight, plain rejection does not, truncated keeps it up to the cap."""
    given, product = off(np.log(rho).tolist()), math.prod(rho)
    assert weight_of(SequenceRejection(), given) == [kept] * len(rho)
    assert weight_of(SequenceMis(), given) == pytest.approx([kept * product] * len(rho), rel=1e-12)
    assert weight_of(SequenceTis(), given) == pytest.approx([min(product, 2.0)] * len(rho), rel=1e-12)


@pytest.mark.parametrize(
    ("rho", "kept"), [([1.0, 1.0], 1.0), ([2.0, 0.5], 1.0), ([1.03, 1.0], 0.0), ([1.01, 1.0], 1.0), ([0.97, 1.0], 0.0)]
)
def test_geometric_by_hand(rho: list[float], kept: float) -> None:
    assert weight_of(Geometric(), off(np.log(rho).tolist())) == [kept] * len(rho)


def test_icepop_by_hand() -> None:
    given = off(np.log([0.4, 0.6, 1.0, 4.9, 5.1]).tolist())
    assert weight_of(TokenRejection(), given) == [0.0, 1.0, 1.0, 1.0, 0.0]
    assert weight_of(IcePop(), given) == pytest.approx([0.0, 0.6, 1.0, 4.9, 0.0], rel=1e-12)


@pytest.mark.parametrize(
    ("advantage", "moved", "kept"),
    [(-1.0, -0.2, 0.0), (-1.0, -0.05, 1.0), (-1.0, 0.2, 1.0), (1.0, -0.2, 1.0), (0.0, -0.2, 1.0)],
)
def test_opsm_by_hand(advantage: float, moved: float, kept: float) -> None:
    assert weight_of(Opsm(), off([0.0, 0.0], advantage, moved)) == [kept, kept]


def test_opsm_compares_the_engine_with_the_policy_of_now() -> None:
    assert weight_of(Opsm(), off([-0.3, -0.3], -1.0, 0.25)) == [1.0, 1.0]  # down by 0.3, and up again by 0.25
    assert weight_of(Opsm(), off([-0.1, -0.3], -1.0, 0.0)) == [0.0, 0.0]  # 0.2 on average


def test_a_sample_counts_by_its_own_tokens_only() -> None:
    given = replace(off([0.5, 0.0, 50.0, -50.0]), mask=np.array([[True, True, False, False]]))
    assert weight_of(Geometric(low=0.7, high=math.exp(0.2501)), given)[:2] == [1.0, 1.0]  # exp(0.25), over two
    assert weight_of(Geometric(low=0.7, high=math.exp(0.2499)), given)[:2] == [0.0, 0.0]
    assert weight_of(SequenceRejection(cap=math.exp(0.501)), given)[:2] == [1.0, 1.0]
    assert weight_of(SequenceRejection(cap=math.exp(0.499)), given)[:2] == [0.0, 0.0]


@pytest.mark.parametrize("length", [1, 1000])
def test_where_engine_and_trainer_agree_nothing_changes(length: int) -> None:
    given = batch(np.full((2, length), 0.05), [2.0, -1.5])
    plain, found = run(GrpoConfig(), given), run(GrpoConfig(old_logprobs="trainer", corrections=ALL), given)
    np.testing.assert_array_equal(found.loss, plain.loss)
    np.testing.assert_array_equal(found.gradient, plain.gradient)


@pytest.mark.parametrize("cap", [1.5, 2.0, 2.5, 3.0, 5.0])
@pytest.mark.parametrize(("beside", "kept"), [(-5e-9, 1.0), (5e-9, 0.0)])
def test_the_cap_of_a_sequence_is_not_rounded_to_single_precision(cap: float, beside: float, kept: float) -> None:
    assert weight_of(SequenceRejection(cap=cap), off([math.log(cap) + beside])) == [kept]


@pytest.mark.parametrize("correction", [SequenceRejection(), Geometric()], ids=lambda correction: correction.name)
@pytest.mark.parametrize(("rho", "kept"), [([30.0, -22.0], 0.0), ([50.0, -50.0], 1.0), ([40.0, -20.0, -20.0], 1.0)])
def test_tokens_very_far_off_count_in_full_towards_their_sequence(
    correction: Correction, rho: list[float], kept: float
) -> None:
    assert weight_of(correction, off(rho)) == [kept] * len(rho)


@with_garbage
@in_each_stream
def test_masked_tokens_contribute_no_loss_and_no_gradient(garbage: float, where: str) -> None:
    assert_garbage_is_ignored(GrpoConfig(kl_coef=0.1, old_logprobs="trainer", corrections=ALL), where, garbage)
    for each in ALL:
        assert_garbage_is_ignored(CispoConfig(old_logprobs="trainer", corrections=(each,)), where, garbage)


@pytest.mark.parametrize("correction", ALL, ids=lambda correction: correction.name)
def test_extreme_ratios_stay_finite(correction: Correction) -> None:
    assert_extremes_stay_finite(GrpoConfig(kl_coef=0.1, old_logprobs="trainer", corrections=(correction,)))


def test_samples_without_advantage_teach_nothing() -> None:
    assert_nothing_is_learned_without_advantage(GrpoConfig(old_logprobs="trainer", corrections=ALL))


@pytest.mark.parametrize("correction", ALL, ids=lambda correction: correction.name)
def test_a_correction_that_compares_two_policies_needs_both(correction: Correction) -> None:
    assert GrpoConfig(old_logprobs="trainer", corrections=(correction,)).make(max_tokens=64).requirements.old_logprobs
    assert not GrpoConfig().make(max_tokens=64).requirements.old_logprobs
    if isinstance(correction, Opsm):  # which compares the engine with the policy of now
        assert not GrpoConfig(corrections=(correction,)).make(max_tokens=64).requirements.old_logprobs
    else:
        with pytest.raises(ValidationError, match=f"corrections {correction.name} compare .* set old_logprobs=trainer"):
            GrpoConfig(corrections=(correction,))


@pytest.mark.parametrize("kind", [Geometric, IcePop])
@pytest.mark.parametrize(("low", "high"), [(2.0, 1.0), (1.0, 1.0), (0.0, 1.0)])
def test_an_empty_range_is_refused(kind: type[Geometric] | type[IcePop], low: float, high: float) -> None:
    with pytest.raises(ValidationError):
        kind(low=low, high=high)


def test_defaults_are_the_published_ones() -> None:
    assert (TokenTis().cap, SequenceMis().cap, Opsm().delta) == (2.0, 3.0, 0.1)
    assert (SequenceTis().cap, SequenceRejection().cap) == (2.0, 3.0)
    assert (TokenRejection().low, TokenRejection().high) == (0.5, 5.0)
    assert (Geometric().low, Geometric().high, IcePop().low, IcePop().high) == (0.99, 1.01, 0.5, 5.0)
