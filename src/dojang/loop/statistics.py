"""Estimates and paired comparisons of models from samples of the same problems.

pass@k is the probability that at least one of k samples of a problem is right, estimated without bias from n samples
(Chen et al., 2021). Most of the variance comes from the choice of problems, so the unit of every interval and test is
the problem, not the sample.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dojang.loop.exact_statistics import clopper_pearson, sign_flip_p

__all__ = [
    "BOOTSTRAP",
    "CLOPPER_PEARSON",
    "MIN_PROBLEMS",
    "Difference",
    "Interval",
    "bootstrap",
    "compare",
    "interval",
    "pass_at_k",
]

CLOPPER_PEARSON = "Clopper-Pearson, n = problems"
BOOTSTRAP = "bootstrap over problems"
MIN_PROBLEMS = 6
"""Fewest problems with a p-value: an exact two-sided test of 5 pairs cannot go below 0.0625."""
_REGULAR = 30
"""Problems that must be right, and that must be wrong, for the bootstrap: with fewer its 95% interval covers less."""
_ROUNDS = 10_000
_Z = 1.959963984540054
"""97.5% quantile of the normal distribution."""

Counts = tuple[int, int]
"""Right samples and all samples of a problem."""


@dataclass(frozen=True, slots=True)
class Interval:
    """95% confidence interval."""

    low: float
    high: float
    method: str


@dataclass(frozen=True, slots=True)
class Difference:
    """Accuracy of the second of two models minus that of the first, over the same problems."""

    mean: float
    low: float
    high: float
    """95% interval: adjusted Wald for paired proportions (Bonett and Price, 2012)."""
    p: float | None
    """Two-sided p-value of the paired permutation test; None with fewer than MIN_PROBLEMS problems."""
    exact: bool
    """Whether p is exact, not from sampled sign flips."""
    thinned: bool
    """Whether samples were left out of the test because the models have different numbers of them."""
    problems: int


def pass_at_k(samples: int, right: int, k: int) -> float:
    """Unbiased pass@k of one problem; raises ValueError with fewer than k samples."""
    if not 0 <= right <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@{k} is undefined for {right} right of {samples} samples")
    return 1 - math.comb(samples - right, k) / math.comb(samples, k)


def interval(values: Sequence[float]) -> Interval:
    """95% interval of the mean over problems of values between 0 and 1."""
    right, total, distinct = math.fsum(values), len(values), set(values)
    # Where all problems have the same value, every resample has the same mean.
    if min(right, total - right) < _REGULAR or distinct <= {0.0, 1.0} or len(distinct) == 1:
        return Interval(*clopper_pearson(right, total), CLOPPER_PEARSON)
    return Interval(*bootstrap(values), BOOTSTRAP)


def bootstrap(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """95% percentile interval of the mean over problems drawn with replacement."""
    draw, count = np.random.Generator(np.random.Philox(seed)), len(values)
    distinct, counts = np.unique(np.asarray(values, float), return_counts=True)
    at_a_time = max(1, 2**22 // len(distinct))  # bounds the memory
    means = [
        draw.multinomial(count, counts / count, size=min(at_a_time, _ROUNDS - done)) @ distinct / count
        for done in range(0, _ROUNDS, at_a_time)
    ]
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    return float(low), float(high)


def compare(first: Sequence[Counts], second: Sequence[Counts], seed: int = 0) -> Difference:
    """Compares two models on the same problems, given in the same order."""
    gaps = [_share(after) - _share(before) for before, after in zip(first, second, strict=True)]
    low, high = _adjusted_wald(gaps)
    mean, count = math.fsum(gaps) / len(gaps), len(gaps)
    thinned = any(before[1] != after[1] for before, after in zip(first, second, strict=True))
    if count < MIN_PROBLEMS:
        return Difference(mean, low, high, None, True, thinned, count)
    p, exact = sign_flip_p(_whole_gaps(first, second, seed), seed)
    return Difference(mean, low, high, p, exact, thinned, count)


def _adjusted_wald(gaps: Sequence[float]) -> tuple[float, float]:
    """Wald interval after adding one problem that only the first model solves and one that only the second does."""
    total = len(gaps) + 2
    middle = math.fsum(gaps) / total
    variance = (math.fsum(gap * gap for gap in gaps) + 2) / total - middle * middle
    width = _Z * math.sqrt(variance / total)
    return max(-1.0, middle - width), min(1.0, middle + width)


def _whole_gaps(first: Sequence[Counts], second: Sequence[Counts], seed: int) -> list[int]:
    """Gaps times a common denominator, from the same number of samples of both models per problem: with more samples
    for one model the two are not exchangeable, and the test rejects too often."""
    draw = np.random.Generator(np.random.Philox(seed))
    pairs = []
    for before, after in zip(first, second, strict=True):
        size = min(before[1], after[1])
        pairs.append((_thinned(after, size, draw) - _thinned(before, size, draw), size))
    whole = math.lcm(*(size for _, size in pairs))
    return [gap * (whole // size) for gap, size in pairs]


def _thinned(counts: Counts, size: int, draw: np.random.Generator) -> int:
    """Right samples among `size` of them chosen at random."""
    right, samples = counts
    return right if samples == size else int(draw.hypergeometric(right, samples - right, size))


def _share(counts: Counts) -> float:
    return counts[0] / counts[1]
