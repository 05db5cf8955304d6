"""Distribution of completion lengths, from their mean and maximum: geometric, cut at the maximum.

Each token ends a completion with the same probability. The decay is found so that the mean is right after cutting;
a mean near the maximum makes nearly all completions that long.
"""

import math
from functools import cache

__all__ = ["mean_square", "running_share"]

_HALVINGS = 60


def running_share(length: float, mean: float, longest: float) -> float:
    """Share of completions that have more than `length` tokens."""
    if length >= longest:
        return 0.0
    return math.exp(-_rate(mean, longest) * length)


def mean_square(mean: float, longest: float) -> float:
    """Mean of the squared lengths."""
    rate = _rate(mean, longest)
    reach = rate * longest
    if reach < 1e-3:
        return mean * longest  # all are of the same length, nearly
    return 2 / rate**2 * (1 - math.exp(-reach) * (1 + reach))


@cache
def _rate(mean: float, longest: float) -> float:
    """Probability that a token is the last: the mean is (1 - exp(-rate * longest)) / rate."""
    if mean >= longest:
        return 0.0
    low, high = 0.0, 1 / mean
    for _ in range(_HALVINGS):
        rate = (low + high) / 2
        found = -math.expm1(-rate * longest) / rate
        low, high = (rate, high) if found > mean else (low, rate)
    return (low + high) / 2
