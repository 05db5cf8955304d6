"""Which problem comes when: a seeded shuffle of the training split for every pass over it.

The order is a function of the seed and of how many problems were posed before, so the data position of a run is
one number.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from dojang.types import Problem

__all__ = ["pose"]


def pose(problems: Sequence[Problem], seed: int, first: int, count: int) -> list[tuple[int, Problem]]:
    """The problems of draws first, first + 1, ..., each with its ordinal."""
    size = len(problems)
    return [
        (ordinal, problems[_shuffle(seed, ordinal // size, size)[ordinal % size]])
        for ordinal in range(first, first + count)
    ]


@lru_cache(maxsize=2)  # a step may straddle two passes
def _shuffle(seed: int, epoch: int, size: int) -> tuple[int, ...]:
    """Sorting by counter-based random numbers: numpy promises their bits, but not those of its shuffles."""
    raw = np.random.Philox(key=[seed, 1], counter=[0, epoch, 0, 0]).random_raw(size)
    return tuple(int(place) for place in np.argsort(raw, kind="stable"))
