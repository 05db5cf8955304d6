"""M2PO: which tokens the budget leaves out, found one by one, and what becomes of the others."""

import math
from typing import Literal

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
    batch,
    clipped_surrogate,
    each_token,
    gradient_of,
    in_each_stream,
    mixed,
    run,
    with_garbage,
)

from dojang.algos.m2po import M2poConfig
from dojang.types import Metrics

Variant = Literal["paper", "authors", "astraflow"]
VARIANTS: tuple[Variant, ...] = ("paper", "authors", "astraflow")
THRESHOLD = 0.04
SINGLE = 1e-6  # a clip may be rounded to single precision; a test of its own says whether it is

# Those that count, squared: 0.01 0.09 0.25, and 0.04. The rest goes back where it came from.
HAND = batch([[0.1, 0.3, 0.5, -2.0], [-0.2, 0.4, 3.0, 0.0], [5.0, -5.0, 0.0, 0.0]], [1.0, -1.0, 0.0])


def counted(delta: float, advantage: float) -> bool:
    return (advantage > 0 and delta > 0) or (advantage < 0 and delta < 0)


def moments(given: Batch) -> list[float]:
    """Squared log-ratios of those that count, in order."""
    gaps = {place: given.logp[place] - given.old[place] for place in given.tokens()}
    return sorted(float(gap) ** 2 for place, gap in gaps.items() if counted(gap, float(given.advantage[place])))


def kept_moments(given: Batch, threshold: float) -> list[float]:
    """What is left after the largest has been dropped until the mean of the rest is within the threshold."""
    left = moments(given)
    while left and sum(left) / len(left) > threshold:
        left.pop()
    return left


def reach(given: Batch, threshold: float) -> tuple[float, float]:
    """The log-ratio of the furthest that is kept and of the nearest that is dropped."""
    everything, left = moments(given), kept_moments(given, threshold)
    nearest = math.sqrt(everything[len(left)]) if len(left) < len(everything) else math.inf
    return math.sqrt(left[-1]) if left else 0.0, nearest


def cut_at(given: Batch, threshold: float) -> float:
    """t, by halving, so that the mean of min(d^2, t^2) is the threshold."""
    everything = moments(given)
    if sum(everything) <= threshold * len(everything):
        return math.inf
    low, high = 0.0, math.sqrt(everything[-1])
    for _ in range(200):
        middle = (low + high) / 2
        above = sum(min(each, middle**2) for each in everything) > threshold * len(everything)
        low, high = (low, middle) if above else (middle, high)
    return low


def paper(given: Batch, threshold: float) -> Array:
    nearest = reach(given, threshold)[1]
    # What is dropped is dropped for good: a little step, as for the gradient, does not bring it back.
    return each_token(given, lambda d, A: 0.0 if counted(d, A) and abs(d) >= nearest - 1e-4 else -math.exp(d) * A)


def clipped(given: Batch, low: float, high: float) -> Array:
    """PPO's clip between two log-ratios."""
    return each_token(given, lambda d, A: clipped_surrogate(math.exp(d), A, 1 - math.exp(low), math.exp(high) - 1))


def limit_of(given: Batch, variant: Variant = "paper", threshold: float = THRESHOLD) -> tuple[float, Metrics]:
    algorithm = M2poConfig(variant=variant, threshold=threshold).make(max_tokens=64)
    delta, advantage = given.logp[given.mask] - given.old[given.mask], given.advantage[given.mask]
    return algorithm.limit(torch.tensor(delta), torch.tensor(advantage))


def test_the_limit_by_hand() -> None:
    # (0.01 + 0.04 + 0.09 + 0.25) / 4 = 0.0975, without the last 0.0467, without the last two 0.025.
    limit, figures = limit_of(HAND)
    assert 0.2 <= limit < 0.3
    assert figures == pytest.approx({"actor/m2/before": 0.0975, "actor/m2/after": 0.025}, rel=1e-12)


def test_the_limit_of_the_authors_by_hand() -> None:
    # 0.01 + 0.04 + 2 t^2 = 4 * 0.04, so that t^2 = 0.055.
    limit, figures = limit_of(HAND, "authors")
    assert limit == pytest.approx(0.23452078799117149, rel=1e-12)
    assert figures == pytest.approx({"actor/m2/before": 0.0975, "actor/m2/after": 0.04}, rel=1e-12)


def test_the_paper_by_hand() -> None:
    found = run(M2poConfig(), HAND, limit=limit_of(HAND)[0])
    e = math.exp
    expected = [[-e(0.1), 0.0, 0.0, -e(-2.0)], [e(-0.2), e(0.4), e(3.0), 1.0], [0.0] * 4]
    assert_same(found.loss, expected)
    assert_same(found.gradient, expected)
    np.testing.assert_array_equal(found.figures["actor/pg_clipfrac"], [[0, 1, 1, 0], [0] * 4, [0] * 4])


def test_the_authors_by_hand() -> None:
    found = run(M2poConfig(variant="authors"), HAND, limit=limit_of(HAND, "authors")[0])
    e, most = math.exp, 1.2643029  # exp(0.2345208)
    loss = [[-e(0.1), -most, -most, -e(-2.0)], [e(-0.2), e(0.4), e(3.0), 1.0], [0.0] * 4]
    gradient = [[-e(0.1), 0.0, 0.0, -e(-2.0)], [e(-0.2), e(0.4), e(3.0), 1.0], [0.0] * 4]
    np.testing.assert_allclose(found.loss, loss, atol=1e-6)
    assert_same(found.gradient, gradient)


def test_astraflow_by_hand() -> None:
    found = run(M2poConfig(variant="astraflow"), HAND, limit=limit_of(HAND, "astraflow")[0])
    e = math.exp
    assert_same(found.gradient, [[-e(0.1), 0.0, 0.0, -e(-2.0)], [e(-0.2), e(0.4), e(3.0), 1.0], [0.0] * 4])
    assert found.loss[0, 1] == found.loss[0, 2]
    assert -e(0.3) <= found.loss[0, 1] <= -e(0.2) * (1 - SINGLE)
    assert_same(np.delete(found.loss[0], [1, 2]), [-e(0.1), -e(-2.0)])
    assert_same(found.loss[1:], [[e(-0.2), e(0.4), e(3.0), 1.0], [0.0] * 4])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("threshold", [0.001, 0.04, 0.15])
@pytest.mark.parametrize("variant", ["paper", "astraflow"])
def test_the_limit_separates_kept_from_dropped_tokens(seed: int, threshold: float, variant: Variant) -> None:
    given = mixed(seed=seed)
    everything, left = moments(given), kept_moments(given, threshold)
    furthest, nearest = reach(given, threshold)
    limit, figures = limit_of(given, variant, threshold)
    assert furthest <= limit
    assert limit < nearest or nearest == math.inf == limit
    assert set(figures) == {"actor/m2/before", "actor/m2/after"}
    assert figures["actor/m2/before"] == pytest.approx(np.mean(everything), rel=1e-12)
    assert figures["actor/m2/after"] == pytest.approx(np.mean(left) if left else 0.0, rel=1e-12)
    assert figures["actor/m2/after"] <= threshold


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("threshold", [0.001, 0.04, 0.15])
def test_the_limit_of_the_authors_spends_the_budget(seed: int, threshold: float) -> None:
    given = mixed(seed=seed)
    limit, figures = limit_of(given, "authors", threshold)
    assert limit == pytest.approx(cut_at(given, threshold), rel=1e-10)
    mean = np.mean([min(each, limit**2) for each in moments(given)])
    assert figures["actor/m2/after"] == pytest.approx(mean, rel=1e-10)
    assert figures["actor/m2/after"] == pytest.approx(min(threshold, figures["actor/m2/before"]), rel=1e-12)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("threshold", [0.001, 0.04, 0.15, 5.0])
def test_the_paper_agrees_with_the_oracle(seed: int, threshold: float) -> None:
    given = mixed(seed=seed)
    found = run(M2poConfig(), given, limit=limit_of(given, "paper", threshold)[0])
    assert_same(found.loss, paper(given, threshold))
    assert_same(found.gradient, paper(given, threshold))  # -rA is its own gradient


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("threshold", [0.001, 0.04, 0.15, 5.0])
def test_the_authors_agree_with_the_oracle(seed: int, threshold: float) -> None:
    given = mixed(seed=seed)
    cut = cut_at(given, threshold)
    most = min(cut, 50.0)  # beyond all there is
    found = run(M2poConfig(variant="authors"), given, limit=limit_of(given, "authors", threshold)[0])
    assert_same(found.loss, clipped(given, -most, most), tolerance=SINGLE)
    assert_near(found.gradient, gradient_of(lambda at: clipped(at, -most, most), given))
    beyond = each_token(given, lambda d, A: counted(d, A) and abs(d) > cut)
    np.testing.assert_array_equal(found.gradient == 0, (beyond == 1) | (given.advantage == 0) | ~given.mask)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("threshold", [0.001, 0.04, 0.15, 5.0])
def test_astraflow_agrees_with_the_oracle(seed: int, threshold: float) -> None:
    given = mixed(seed=seed)
    furthest, nearest = reach(given, threshold)
    found = run(M2poConfig(variant="astraflow"), given, limit=limit_of(given, "astraflow", threshold)[0])
    assert_same(found.gradient, paper(given, threshold))  # the gradient of what is clipped is that of what is dropped
    wide, tight = (clipped(given, -at, at) for at in (min(nearest, 50.0), min(furthest, 50.0)))
    slack = SINGLE * np.abs(wide)
    assert (np.minimum(wide, tight) - slack <= found.loss).all()
    assert (found.loss <= np.maximum(wide, tight) + slack).all()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (30.0, 1.0, -21.0, 0.0),
        (20.0, 1.0, -20.0, -20.0),
        (0.01, -1.0, 0.05, 0.0),
        (0.06, -1.0, 0.06, 0.06),
        (30.0, -1.0, 30.0, 30.0),
        (0.01, 1.0, -0.01, -0.01),
    ],
)
def test_astraflow_never_lets_ratios_beyond_its_widest_clip(
    ratio: float, advantage: float, loss: float, gradient: float
) -> None:
    given = batch([[math.log(ratio)]], [advantage])
    limit, _ = limit_of(given, "astraflow", 100.0)  # within budget
    for each in (limit, math.inf, 4.0):
        found = run(M2poConfig(variant="astraflow", threshold=100.0), given, limit=each)
        assert found.loss.item() == pytest.approx(loss, rel=SINGLE)
        assert found.gradient.item() == pytest.approx(gradient, rel=1e-9)


@pytest.mark.parametrize("variant", ["paper", "authors"])
def test_within_budget_nothing_is_clipped_however_far(variant: Variant) -> None:
    given = batch([[4.0, -4.0, 10.0], [4.0, -4.0, -10.0]], [1.0, -2.0])
    limit, figures = limit_of(given, variant, 100.0)
    assert limit == math.inf
    assert figures["actor/m2/before"] == figures["actor/m2/after"] == pytest.approx(58.0)  # of 16, 100, 16, 100
    found = run(M2poConfig(variant=variant), given, limit=limit)
    assert_same(found.loss, -np.exp(given.delta) * given.advantage)
    assert_same(found.gradient, -np.exp(given.delta) * given.advantage)


@pytest.mark.parametrize("variant", VARIANTS)
def test_exactly_on_budget_is_within_it(variant: Variant) -> None:
    algorithm = M2poConfig(variant=variant, threshold=0.25).make(max_tokens=64)
    limit, figures = algorithm.limit(torch.tensor([0.5, -0.5, 0.5]).double(), torch.tensor([1.0, -1.0, 2.0]).double())
    assert limit == math.inf
    assert figures == {"actor/m2/before": 0.25, "actor/m2/after": 0.25}


@pytest.mark.parametrize("variant", ["paper", "astraflow"])
def test_kept_tokens_may_reach_the_threshold_exactly(variant: Variant) -> None:
    algorithm = M2poConfig(variant=variant, threshold=0.25).make(max_tokens=64)
    limit, figures = algorithm.limit(torch.tensor([0.5, 2.0, 0.5]).double(), torch.ones(3).double())
    assert 0.5 <= limit < 2.0
    assert figures == {"actor/m2/before": 1.5, "actor/m2/after": 0.25}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("delta", "advantage"), [([], []), ([9.0, -9.0], [-1.0, 1.0]), ([9.0], [0.0]), ([0.0], [1.0])])
def test_where_none_counts_there_is_no_limit(variant: Variant, delta: list[float], advantage: list[float]) -> None:
    algorithm = M2poConfig(variant=variant).make(max_tokens=64)
    limit, figures = algorithm.limit(torch.tensor(delta).double(), torch.tensor(advantage).double())
    assert limit == math.inf
    assert figures == {"actor/m2/before": 0.0, "actor/m2/after": 0.0}


@pytest.mark.parametrize("variant", ["paper", "astraflow"])
def test_where_each_by_itself_is_beyond_the_budget_all_are_dropped(variant: Variant) -> None:
    given = batch([[0.5, 0.7, -0.3], [-0.6, -0.5, 0.2]], [1.0, -1.0])
    limit, figures = limit_of(given, variant)
    assert 0 <= limit < 0.5
    assert figures["actor/m2/after"] == 0.0
    gradient = run(M2poConfig(variant=variant), given, limit=limit).gradient
    assert_same(gradient, [[0.0, 0.0, -math.exp(-0.3)], [0.0, 0.0, math.exp(0.2)]])


@pytest.mark.parametrize("variant", ["paper", "astraflow"])
def test_equals_are_dropped_together(variant: Variant) -> None:
    # One by one, the first 0.3 would do: 0.01 and 0.09 have a mean of 0.05. A limit cannot tell the two apart.
    given = torch.tensor([0.1, 0.3, 0.3]).double()
    limit, figures = (
        M2poConfig(variant=variant, threshold=0.051).make(max_tokens=64).limit(given, torch.ones(3).double())
    )
    assert 0.1 <= limit < 0.3
    assert figures["actor/m2/after"] == pytest.approx(0.01, rel=1e-6)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_limit_is_found_even_where_rounding_decides(variant: Variant) -> None:
    rng = np.random.default_rng(0)
    for size in (3, 8, 50, 1000):
        for _ in range(20):
            delta = torch.tensor(rng.random(size))
            mean = float(delta.square().sort().values.mean())
            for threshold in (math.nextafter(mean, 0.0), mean, math.nextafter(mean, 1.0)):
                algorithm = M2poConfig(variant=variant, threshold=threshold).make(max_tokens=64)
                _, figures = algorithm.limit(delta, torch.ones(size).double())
                assert figures["actor/m2/after"] <= threshold * (1 + 1e-12)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("at", [1, 2, 4])
def test_micro_batches_with_the_limit_of_all_tokens_give_the_losses_of_the_whole(variant: Variant, at: int) -> None:
    given = mixed(seed=1)
    config = M2poConfig(variant=variant)
    limit, _ = limit_of(given, variant)
    parts = (given.rows(0, at), given.rows(at, len(given.logp)))
    assert any(limit_of(part, variant)[0] != limit for part in parts)  # so that it matters whose limit it is
    whole, halves = run(config, given, limit=limit), [run(config, part, limit=limit) for part in parts]
    np.testing.assert_array_equal(np.concatenate([half.loss for half in halves]), whole.loss)
    np.testing.assert_array_equal(np.concatenate([half.gradient for half in halves]), whole.gradient)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_limit_does_not_depend_on_the_order_of_tokens(variant: Variant) -> None:
    given = mixed(seed=1)
    algorithm = M2poConfig(variant=variant).make(max_tokens=64)
    delta, advantage = torch.tensor(given.delta[given.mask]), torch.tensor(given.advantage[given.mask])
    order = torch.tensor(np.random.default_rng(0).permutation(len(delta)))
    assert algorithm.limit(delta[order], advantage[order]) == algorithm.limit(delta, advantage)


@pytest.mark.parametrize("far", [25.0, 30.0, 1e4])
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("variant", ["paper", "astraflow"])
def test_a_dropped_token_with_a_huge_ratio_has_no_gradient(variant: Variant, far: float, sign: float) -> None:
    given = batch([[sign * 0.1, sign * far, 0.0]], [sign])
    limit, _ = limit_of(given, variant)
    assert 0.1 <= limit < far
    found = run(M2poConfig(variant=variant), given, limit=limit)
    assert found.gradient[0, 1] == 0.0
    assert found.figures["actor/pg_clipfrac"][0, 1] == 1.0
    if variant == "paper":
        assert found.loss[0, 1] == 0.0
    else:
        assert abs(found.loss[0, 1]) <= 21 * (1 + SINGLE)


def test_the_clip_is_not_rounded_to_single_precision() -> None:
    given = mixed()
    limit, _ = limit_of(given, "authors")
    found = run(M2poConfig(variant="authors"), given, limit=limit)
    assert_same(found.loss, clipped(given, -limit, limit))


@pytest.mark.parametrize("variant", VARIANTS)
@with_garbage
@in_each_stream
def test_masked_tokens_contribute_no_loss_and_no_gradient(garbage: float, where: str, variant: Variant) -> None:
    assert_garbage_is_ignored(M2poConfig(variant=variant, kl_coef=0.1), where, garbage, limit=0.3)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("limit", [0.0, 0.3, 5000.0, math.inf])
def test_extreme_ratios_stay_finite(variant: Variant, limit: float) -> None:
    assert_extremes_stay_finite(M2poConfig(variant=variant, kl_coef=0.1), limit=limit)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("limit", [0.3, math.inf])
def test_samples_without_advantage_teach_nothing(variant: Variant, limit: float) -> None:
    assert_nothing_is_learned_without_advantage(M2poConfig(variant=variant), limit=limit)


def test_defaults_are_the_published_ones() -> None:
    config = M2poConfig()
    assert (config.advantage, config.loss_aggregation, config.threshold, config.variant) == (
        "grpo",
        "tokens",
        0.04,
        "paper",
    )
    assert config.make(max_tokens=64).requirements.limit
