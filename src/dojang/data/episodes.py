"""Numbered episodes, for environments that make their own problems, such as games.

The number of an episode is the seed of its instance. Training and held-out episodes have different numbers; whether an
environment can make the same instance of two numbers is up to it.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

from pydantic import Field

from dojang.data.section import GeneratedSection, number_of
from dojang.types import Message, Problem

__all__ = ["EpisodesConfig"]


class EpisodesConfig(GeneratedSection):
    """Numbered episodes of an environment."""

    name: Literal["episodes"] = "episodes"
    train_size: int = Field(default=1024, ge=1, le=10**6)
    test_size: int = Field(default=128, ge=1, le=10**6)

    def _draws(self) -> Iterator[tuple[str, bool, Callable[[], Problem]]]:
        for number in itertools.count():
            held_out = number_of(f"episode {number}") % 8 == 0
            yield str(number), held_out, partial(_problem, number, held_out)


def _problem(number: int, held_out: bool) -> Problem:
    """Problem whose reference is the seed of the instance."""
    return Problem(
        id=f"episodes/{number}",
        source="episodes",
        messages=(Message("user", f"Episode {number}"),),
        reference=str(number),
        columns={"seed": number, "held_out": held_out},
    )
