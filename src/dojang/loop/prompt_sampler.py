"""Prompt sampler: a seeded shuffle of the training split for every epoch.

The order is a function of the seed and of the number of prompts drawn before, so the data position of a run is one
number.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from dojang.types import Problem

__all__ = ["Skips", "draw_prompts", "problem_at"]

Skips = Callable[[int, Problem], bool]
"""Tells whether to leave out the problem of a prompt index (curriculum.py)."""


def draw_prompts(
    problems: Sequence[Problem], seed: int, first: int, count: int, skips: Skips = lambda prompt_index, problem: False
) -> list[tuple[int, Problem]]:
    """Draws `count` problems from position `first` on, each with its prompt index; leaves out those that `skips`
    says."""
    drawn: list[tuple[int, Problem]] = []
    for prompt_index in itertools.count(first):
        if len(drawn) == count:
            break
        problem = problem_at(problems, seed, prompt_index)
        if not skips(prompt_index, problem):
            drawn.append((prompt_index, problem))
    return drawn


def problem_at(problems: Sequence[Problem], seed: int, prompt_index: int) -> Problem:
    """Returns the problem that is drawn at a prompt index."""
    epoch, place = divmod(prompt_index, len(problems))
    return problems[_shuffle(seed, epoch, len(problems))[place]]


@lru_cache(maxsize=2)  # a step may span two epochs
def _shuffle(seed: int, epoch: int, size: int) -> tuple[int, ...]:
    """Sorts by counter-based random numbers: numpy guarantees their bits, but not those of its shuffles."""
    raw = np.random.Philox(key=[seed, 1], counter=[0, epoch, 0, 0]).random_raw(size)
    return tuple(int(place) for place in np.argsort(raw, kind="stable"))
