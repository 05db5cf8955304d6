"""What can be said of a model after some attempts at some problems.

pass@k is the chance that at least one of k attempts at a problem is right, estimated without bias from n of them (Chen
et al., 2021). Which problems were posed is the larger part of chance, so intervals and comparisons draw problems anew.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Difference", "bootstrap", "compare", "pass_at_k", "wilson"]

_ROUNDS = 10_000
_Z = 1.959963984540054
"""Of 95% of a normal distribution."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How much better the second of two models is, over the same problems."""

    mean: float
    low: float
    high: float
    """Of 95% of the draws."""
    p: float
    """The chance of a difference at least as far from zero, if there were none; two-sided."""
    problems: int


def pass_at_k(attempts: int, right: int, k: int) -> float:
    """For one problem; ValueError if there were fewer than k attempts."""
    if not 0 <= right <= attempts or not 1 <= k <= attempts:
        raise ValueError(f"pass@{k} of {right} right ones in {attempts} attempts")
    return 1 - math.comb(attempts - right, k) / math.comb(attempts, k)


def wilson(right: int, total: int) -> tuple[float, float]:
    """Where a share lies, with 95% confidence, if so many of `total` single attempts were right."""
    share, z2 = right / total, _Z * _Z
    middle = (share + z2 / (2 * total)) / (1 + z2 / total)
    width = _Z * math.sqrt(share * (1 - share) / total + z2 / (4 * total * total)) / (1 + z2 / total)
    return min(share, max(0.0, middle - width)), max(share, min(1.0, middle + width))


def bootstrap(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Where the mean over problems lies, with 95% confidence."""
    low, high = np.quantile(_means(np.asarray(values, float), seed), [0.025, 0.975])
    return float(low), float(high)


def compare(first: Sequence[float], second: Sequence[float], seed: int = 0) -> Difference:
    """Paired: the same problem in the same place of both."""
    gaps = np.asarray(second, float) - np.asarray(first, float)
    means = _means(gaps, seed)
    low, high = np.quantile(means, [0.025, 0.975])
    tail = min(float((means <= 0).mean()), float((means >= 0).mean()))
    return Difference(float(gaps.mean()), float(low), float(high), min(1.0, 2 * tail), len(gaps))


def _means(
    values: "np.ndarray[tuple[int], np.dtype[np.float64]]", seed: int
) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Of problems drawn anew, some at a time so that memory is bounded."""
    draw, count = np.random.Generator(np.random.Philox(seed)), len(values)
    size = max(1, 2**22 // count)
    parts = [
        values[draw.integers(count, size=(min(size, _ROUNDS - done), count))].mean(1)
        for done in range(0, _ROUNDS, size)
    ]
    return np.concatenate(parts)
