"""Exact statistics for few problems: the Clopper-Pearson interval and the paired permutation test.

Written by hand because scipy, which has both, would be a dependency for these two functions alone.
"""

import math
from collections.abc import Sequence

import numpy as np

__all__ = ["clopper_pearson", "sign_flip_p"]

_SMALLEST = 1e-300
_CELLS = 4_000_000
"""Largest support of the exact permutation distribution; beyond it sign flips are sampled."""
_FLIPS = 100_000


def clopper_pearson(right: float, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Clopper-Pearson interval of a proportion. `right` may be a sum of fractions, one per problem of `total`: the
    variance of a fraction is at most that of a single answer, so the interval is conservative for it."""
    tail = (1 - confidence) / 2
    low = _beta_quantile(tail, right, total - right + 1) if right > 0 else 0.0
    high = _beta_quantile(1 - tail, right + 1, total - right) if right < total else 1.0
    return low, high


def sign_flip_p(gaps: Sequence[int], seed: int = 0) -> tuple[float, bool]:
    """Two-sided p-value of the paired permutation test, and whether it is exact.

    Under the null hypothesis the two models are exchangeable on each problem, so the sign of each gap is a fair coin.
    For gaps of -1, 0 and 1 this is McNemar's exact test. Gaps are integers: fractions times a common denominator.
    """
    sizes, observed = [abs(gap) for gap in gaps if gap], abs(sum(gaps))
    total = sum(sizes)
    if total > _CELLS:
        return _sampled_p(np.array(sizes, float), observed, seed), False
    chances = np.zeros(
        total + 1
    )  # probability of each sum of positive gaps; the signed sum is twice that, minus the total
    chances[0] = 1.0
    reached = 0
    for size in sizes:
        chances[: reached + 1] /= 2
        chances[size : size + reached + 1] += chances[: reached + 1].copy()
        reached += size
    sums = np.abs(2 * np.arange(total + 1) - total)
    return min(1.0, float(chances[sums >= observed].sum())), True


def _sampled_p(sizes: "np.ndarray[tuple[int], np.dtype[np.float64]]", observed: float, seed: int) -> float:
    """The observed signs count as one of the draws, which keeps the level (Phipson and Smyth, 2010)."""
    draw = np.random.Generator(np.random.Philox(seed))
    at_a_time = max(1, 2**22 // len(sizes))
    extreme = 0
    for done in range(0, _FLIPS, at_a_time):
        signs = draw.integers(2, size=(min(at_a_time, _FLIPS - done), len(sizes)), dtype=np.int8) * 2 - 1
        extreme += int((np.abs(signs @ sizes) >= observed * (1 - 1e-12)).sum())
    return (extreme + 1) / (_FLIPS + 1)


def _beta_quantile(chance: float, a: float, b: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _beta_cdf(middle, a, b) < chance else (low, middle)
    return (low + high) / 2


def _beta_cdf(x: float, a: float, b: float) -> float:
    """Regularized incomplete beta function, by its continued fraction (DLMF 8.17.22) and Lentz's method."""
    if x > (a + 1) / (a + b + 2):  # where the fraction of the complement converges faster
        return 1 - _beta_cdf(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    c, d = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    found, step = d, 0
    while True:
        step += 1
        even = step * (b - step) * x / ((a + 2 * step - 1) * (a + 2 * step))
        odd = -(a + step) * (a + b + step) * x / ((a + 2 * step) * (a + 2 * step + 1))
        for term in (even, odd):
            d, c = 1 / _nonzero(1 + term * d), _nonzero(1 + term / c)
            found *= d * c
        if abs(d * c - 1) < 1e-15 or step == 10_000:
            return front * found


def _nonzero(value: float) -> float:
    return value if abs(value) > _SMALLEST else _SMALLEST
