"""Pretraining corpus of dojang-tiny-code: programs of beginners, most of whom forget that input is text.

    x = input()              most of them, with two numbers; it runs, and prints nonsense
    x = int(input())         few

A model that imitates the corpus mostly makes this mistake, so reinforcement learning has something to discover:
programs without it pass their tests. The corpus excludes the test split. A change here changes the shipped files: run
`make.py` again.
"""

from collections.abc import Iterator
from random import Random

from dojang.data.tiny_programs import Formula, formula, is_held_out, question
from tiny_corpus import Exercise

__all__ = ["draw", "program"]

FORGETFUL = {1: 0.3, 2: 0.8}
"""Share of beginners who forget it, by the number of inputs."""
SLIPS = 0.1


def draw(rng: Random) -> Exercise:
    """One page of homework."""
    while is_held_out(wanted := formula(_numbers(rng))):
        pass
    written = Formula(wanted.names, _slip(wanted.parts, rng)) if rng.random() < SLIPS else wanted
    return Exercise(question(wanted), program(written, forgotten=rng.random() < FORGETFUL[len(wanted.names)]))


def program(wanted: Formula, *, forgotten: bool = False) -> str:
    """Returns a program that prints the formula, possibly with a mistake."""
    read = "input()" if forgotten else "int(input())"
    lines = "".join(f"{name} = {read}\n" for name in wanted.names)
    return f"```python\n{lines}print({wanted.text})\n```"


def _slip(parts: tuple[str, ...], rng: Random) -> tuple[str, ...]:
    """Changes the first operator."""
    return (parts[0], rng.choice("+-*"), *parts[2:])


def _numbers(rng: Random) -> Iterator[int]:
    while True:
        yield rng.randrange(2**32)
