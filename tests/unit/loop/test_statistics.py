"""pass@k and intervals, beside numpy oracles that go the long way."""

from itertools import combinations

import numpy as np
import pytest

from dojang.loop.statistics import bootstrap, compare, pass_at_k, wilson


@pytest.mark.parametrize("attempts", [1, 2, 5, 8])
def test_pass_at_k_is_the_share_of_draws_with_a_right_one(attempts: int) -> None:
    for right in range(attempts + 1):
        answers = [place < right for place in range(attempts)]
        for k in range(1, attempts + 1):
            draws = [any(drawn) for drawn in combinations(answers, k)]
            assert pass_at_k(attempts, right, k) == pytest.approx(np.mean(draws), abs=1e-12)


def test_pass_at_k_has_no_bias() -> None:
    draw, chance, k = np.random.default_rng(0), 0.3, 4
    found = [pass_at_k(10, int(each), k) for each in draw.binomial(10, chance, 20_000)]
    assert np.mean(found) == pytest.approx(1 - (1 - chance) ** k, abs=0.005)


def test_pass_at_k_of_many_attempts_is_a_number() -> None:
    assert pass_at_k(10_000, 3, 5_000) == pytest.approx(0.875, abs=1e-3)


@pytest.mark.parametrize(("attempts", "right", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4)])
def test_what_is_no_pass_at_k(attempts: int, right: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k}"):
        pass_at_k(attempts, right, k)


@pytest.mark.parametrize(("right", "total"), [(0, 10), (10, 10), (3, 10), (150, 164)])
def test_the_interval_of_a_share_holds_95_in_100(right: int, total: int) -> None:
    low, high = wilson(right, total)
    z = 1.959963984540054
    for edge in {low, high} - {0.0, 1.0}:  # where the observed share is just z standard deviations away
        assert abs(right / total - edge) == pytest.approx(z * np.sqrt(edge * (1 - edge) / total), abs=1e-7)
    assert 0 <= low <= right / total <= high <= 1


def test_intervals_of_means_hold_the_mean_about_as_often_as_they_say() -> None:
    draw = np.random.default_rng(1)
    held = []
    for seed in range(200):
        low, high = bootstrap(draw.beta(2, 3, 80).tolist(), seed)
        held.append(low <= 0.4 <= high)
    assert 0.89 <= np.mean(held) <= 0.99


def test_the_interval_of_a_mean_is_that_of_draws_with_replacement() -> None:
    values = np.random.default_rng(2).random(50)
    again = np.random.default_rng(3)
    means = [again.choice(values, 50).mean() for _ in range(20_000)]
    assert bootstrap(values.tolist()) == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.004)
    assert bootstrap(values.tolist()) == bootstrap(values.tolist())


def test_a_difference_that_is_there_and_one_that_is_not() -> None:
    draw = np.random.default_rng(4)
    first = draw.random(300)
    better = compare(first.tolist(), (first + 0.05 + draw.normal(0, 0.1, 300)).tolist())
    assert better.low > 0
    assert better.p < 0.01
    assert better.mean == pytest.approx(0.05, abs=0.02)
    same = compare(first.tolist(), draw.permutation(first).tolist())
    assert same.low < 0 < same.high
    assert same.p > 0.05
    assert compare([1.0, 0.0], [1.0, 0.0]).p == 1.0


def test_chances_are_even_where_there_is_no_difference() -> None:
    draw = np.random.default_rng(5)
    p = [compare(draw.random(60).tolist(), draw.random(60).tolist(), seed).p for seed in range(200)]
    assert 0.01 <= np.mean(np.array(p) < 0.05) <= 0.11
