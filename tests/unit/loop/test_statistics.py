"""pass@k, intervals and comparisons: beside numpy oracles that go the long way, and in simulations."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from dojang.loop.exact_statistics import clopper_pearson
from dojang.loop.statistics import BOOTSTRAP, CLOPPER_PEARSON, bootstrap, compare, interval, pass_at_k


@pytest.mark.parametrize("samples", [1, 2, 5, 8])
def test_pass_at_k_is_the_share_of_draws_with_a_right_one(samples: int) -> None:
    for right in range(samples + 1):
        answers = [place < right for place in range(samples)]
        for k in range(1, samples + 1):
            draws = [any(drawn) for drawn in combinations(answers, k)]
            assert pass_at_k(samples, right, k) == pytest.approx(np.mean(draws), abs=1e-12)


def test_pass_at_k_has_no_bias() -> None:
    draw, chance, k = np.random.default_rng(0), 0.3, 4
    found = [pass_at_k(10, int(each), k) for each in draw.binomial(10, chance, 20_000)]
    assert np.mean(found) == pytest.approx(1 - (1 - chance) ** k, abs=0.005)


def test_pass_at_k_of_many_attempts_is_a_number() -> None:
    assert pass_at_k(10_000, 3, 5_000) == pytest.approx(0.875, abs=1e-3)


@pytest.mark.parametrize(("samples", "right", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4)])
def test_what_is_no_pass_at_k(samples: int, right: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k}"):
        pass_at_k(samples, right, k)


def test_the_interval_of_a_mean_is_that_of_draws_with_replacement() -> None:
    values = np.random.default_rng(2).random(50)
    again = np.random.default_rng(3)
    means = [again.choice(values, 50).mean() for _ in range(5_000)]
    assert bootstrap(values.tolist()) == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.006)
    assert bootstrap(values.tolist()) == bootstrap(values.tolist())


@pytest.mark.parametrize("right", [0, 29])
def test_bootstrap_is_used_only_with_30_problems_on_either_side(right: int) -> None:
    few = [0.5] * 2 * right + [0.0] * (100 - right)
    assert interval(few).method == interval([1 - each for each in few]).method == CLOPPER_PEARSON
    assert interval([0.25, 0.75] * 30).method == BOOTSTRAP
    assert interval([1.0, 0.0] * 100).method == CLOPPER_PEARSON  # one answer each: exact


def test_interval_of_equal_values_has_a_width() -> None:
    """The bootstrap resamples one value: its interval would be a point."""
    found = interval([0.5] * 60)
    assert found.method == CLOPPER_PEARSON
    assert found.low < 0.4 < 0.6 < found.high


POPULATIONS: dict[str, Callable[[np.random.Generator, float, tuple[int, int]], Any]] = {
    "all or nothing": lambda draw, mean, shape: draw.random(shape) < mean,
    "equally hard": lambda draw, mean, shape: np.full(shape, mean),
    "u-shaped": lambda draw, mean, shape: draw.beta(0.3 * mean, 0.3 * (1 - mean), shape),
    "few easy ones": lambda draw, mean, shape: np.where(draw.random(shape) < mean / (2 - mean), 1.0, mean / 2),
}


@pytest.mark.parametrize("samples", [1, 8])
def test_clopper_pearson_covers_the_mean_of_any_population(samples: int) -> None:
    draw, trials = np.random.default_rng(1), 1_000
    for problems in (5, 8, 20, 100, 500):
        for mean in (0.02, 0.05, 0.5, 0.98):
            # Both ends rise with the sum, so those sums whose interval holds the mean are found by bisection.
            sums = np.arange(problems * samples + 1) / samples
            first = bisect_left(sums, mean, key=lambda each: clopper_pearson(each, problems)[1])
            end = bisect_right(sums, mean, key=lambda each: clopper_pearson(each, problems)[0])
            for name, population in POPULATIONS.items():
                chances = population(draw, mean, (trials, problems))
                found = draw.binomial(samples, chances).sum(1)
                covered = np.mean((found >= first) & (found < end))
                assert covered >= 0.93, (name, problems, mean, covered)


def test_bootstrap_covers_the_mean_where_it_is_used() -> None:
    draw, held = np.random.default_rng(2), []
    for problems, mean in ((80, 0.5), (300, 0.12), (400, 0.9)):
        for _ in range(100):
            chances = POPULATIONS["u-shaped"](draw, mean, (1, problems))[0]
            found = interval((draw.binomial(4, chances) / 4).tolist())
            held.append(found.low <= mean <= found.high)
    assert np.mean(held) >= 0.93


def counts(values: Any, samples: int = 1) -> list[tuple[int, int]]:
    return [(int(each), samples) for each in values]


def test_a_difference_that_is_there_and_one_that_is_not() -> None:
    draw = np.random.default_rng(4)
    chances = draw.beta(1, 1, 300)
    first = draw.binomial(8, chances)
    better = compare(counts(first, 8), counts(draw.binomial(8, chances * 0.9 + 0.1), 8))
    assert better.low > 0
    assert better.p is not None
    assert better.p < 0.01
    assert better.mean == pytest.approx(0.05, abs=0.03)
    same = compare(counts(first, 8), counts(draw.binomial(8, chances), 8))
    assert same.low < 0 < same.high
    assert same.p is not None
    assert same.p > 0.05
    assert compare([(1, 1), (0, 1)] * 3, [(1, 1), (0, 1)] * 3).p == 1.0


@pytest.mark.parametrize(("problems", "p"), [(3, None), (5, None), (6, 2 / 2**6), (12, 2 / 2**12)])
def test_no_p_value_below_six_problems(problems: int, p: float | None) -> None:
    found = compare([(0, 1)] * problems, [(1, 1)] * problems)
    assert found.p == p
    assert found.mean == found.high == 1.0
    assert (found.low > 0) == (problems > 4)


@pytest.mark.parametrize("samples", [(1, 1), (4, 4), (1, 8)], ids=["1 and 1", "4 and 4", "1 and 8"])
@pytest.mark.parametrize("problems", [6, 12, 60])
def test_p_values_keep_their_level_under_the_null(problems: int, samples: tuple[int, int]) -> None:
    draw, trials = np.random.default_rng(5), 400
    rejected = 0
    for trial in range(trials):
        mean = (0.1, 0.5, 0.9)[trial % 3]
        chances = draw.beta(mean, 1 - mean, problems)
        first, second = (counts(draw.binomial(each, chances), each) for each in samples)
        p = compare(first, second, seed=trial).p
        rejected += p is not None and p <= 0.05
    assert rejected / trials <= 0.05 + 2 * (0.05 * 0.95 / trials) ** 0.5


def test_intervals_of_differences_cover() -> None:
    draw = np.random.default_rng(6)
    for problems in (5, 20, 100):
        for low, high in ((0.05, 0.05), (0.3, 0.5), (0.9, 0.98)):
            held = []
            for _ in range(300):
                easy = draw.random(problems)  # the same problems are easy for both
                first, second = ((easy < each) for each in (low, high))
                found = compare(counts(first), counts(second))
                held.append(found.low <= high - low <= found.high)
            assert np.mean(held) >= 0.92, (problems, low, high)
