"""Exact intervals and tests, beside published values."""

import math
from itertools import pairwise, product

import numpy as np
import pytest

from dojang.loop import exact_statistics
from dojang.loop.exact_statistics import clopper_pearson, sign_flip_p


@pytest.mark.parametrize(
    ("right", "total", "low", "high"),
    [
        (81, 263, 0.2527, 0.3676),  # Newcombe (1998), table I
        (0, 20, 0.0, 0.1684),
        (1, 29, 0.0009, 0.1776),
        (1, 10, 0.0025, 0.4450),
        (5, 10, 0.1871, 0.8129),
        (10, 10, 0.6915, 1.0),
    ],
)
def test_clopper_pearson_published(right: int, total: int, low: float, high: float) -> None:
    assert clopper_pearson(right, total) == pytest.approx((low, high), abs=6e-5)


@pytest.mark.parametrize(("right", "total"), [(3, 7), (20, 40), (1, 400), (650, 1319)])
def test_clopper_pearson_has_tails_of_2_5_percent(right: int, total: int) -> None:
    low, high = clopper_pearson(right, total)

    def chance(share: float, counts: range) -> float:
        logs = (
            math.lgamma(total + 1) - math.lgamma(each + 1) - math.lgamma(total - each + 1)
            + each * math.log(share) + (total - each) * math.log1p(-share)
            for each in counts
        )  # fmt: skip
        return sum(map(math.exp, logs))

    assert chance(low, range(right, total + 1)) == pytest.approx(0.025, abs=1e-9)
    assert chance(high, range(right + 1)) == pytest.approx(0.025, abs=1e-9)


def test_clopper_pearson_of_fractions_lies_between_its_neighbours() -> None:
    ends = [clopper_pearson(each / 4, 10) for each in range(41)]
    assert all(one[0] <= other[0] and one[1] <= other[1] for one, other in pairwise(ends))
    assert clopper_pearson(1e-9, 10)[0] == pytest.approx(0, abs=1e-9)
    assert clopper_pearson(10 - 1e-12, 10)[1] <= 1


def test_permutation_test_of_darwins_maize() -> None:
    """Fisher (1935): 1,726 of the 32,768 sign patterns are at least as extreme."""
    gaps = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]
    assert sign_flip_p(gaps) == (pytest.approx(1726 / 32768, abs=1e-12), True)


@pytest.mark.parametrize(("better", "worse"), [(9, 1), (10, 2), (0, 6), (3, 3), (150, 110)])
def test_single_answers_give_mcnemars_exact_test(better: int, worse: int) -> None:
    count = better + worse
    tail = sum(math.comb(count, each) for each in range(min(better, worse) + 1)) / 2**count
    found, is_exact = sign_flip_p([1] * better + [-1] * worse + [0] * 7)
    assert is_exact
    assert found == pytest.approx(min(1.0, 2 * tail), rel=1e-9)


def test_permutation_test_counts_all_sign_patterns() -> None:
    draw = np.random.default_rng(0)
    for _ in range(20):
        gaps = draw.integers(-8, 9, size=9).tolist()
        sums = [
            abs(sum(sign * gap for sign, gap in zip(signs, gaps, strict=True))) for signs in product((1, -1), repeat=9)
        ]
        assert sign_flip_p(gaps)[0] == pytest.approx(np.mean([each >= abs(sum(gaps)) for each in sums]), abs=1e-12)
    assert sign_flip_p([0, 0]) == (1.0, True)
    assert sign_flip_p([1] * 5000)[0] < 1e-300  # no underflow to a wrong number, no overflow


def test_sampled_sign_flips_agree_with_the_exact_test(monkeypatch: pytest.MonkeyPatch) -> None:
    gaps = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]
    monkeypatch.setattr(exact_statistics, "_CELLS", 10)
    found, is_exact = sign_flip_p(gaps)
    assert not is_exact
    assert found == pytest.approx(1726 / 32768, abs=0.003)
