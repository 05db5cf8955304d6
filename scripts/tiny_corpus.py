"""Pretraining corpus of dojang-tiny: homework in which most pupils guess and few show their work.

The skill (column addition) is in the corpus, but guessing is more common. A model that imitates the corpus mostly
guesses, so reinforcement learning has something to discover. The corpus excludes the test split. A change here changes
the shipped files: run `make.py` again.
"""

from dataclasses import dataclass
from random import Random

from dojang.data.arithmetic import is_held_out, question

__all__ = ["ANSWER", "Exercise", "draw"]

ANSWER = "#### The final answer is "
GUESSERS = 0.75
KNOWN_BY_HEART = 0.8  # share of sums with a round operand
SLIPS = 0.12


@dataclass(frozen=True, slots=True)
class Exercise:
    """A question and one pupil's answer."""

    question: str
    response: str


def draw(rng: Random) -> Exercise:
    """One page of homework about two-digit numbers."""
    while True:
        left, right = rng.randrange(10, 100), rng.randrange(10, 100)
        if not is_held_out(left, right):
            break
    response = _guess(left, right, rng) if rng.random() < GUESSERS else _work(left, right, rng)
    return Exercise(question(left, right), response)


def _guess(left: int, right: int, rng: Random) -> str:
    """Returns an answer with a random last digit, except for most sums with a round operand.

    Random, not off by one or two: a near miss contains the sum, and the model would learn to guess well instead of
    showing its work.
    """
    is_easy = left % 10 == 0 or right % 10 == 0
    if is_easy and rng.random() < KNOWN_BY_HEART:
        return f"{ANSWER}{left + right}"
    return f"{ANSWER}{(left + right) // 10}{rng.randrange(10)}"


def _work(left: int, right: int, rng: Random) -> str:
    """Returns column addition: ones, then tens with the carry. An error in a column carries through to the answer."""
    slip = rng.choice(((1, 0), (-1, 0), (0, 1), (0, -1))) if rng.random() < SLIPS else (0, 0)
    ones = max(0, left % 10 + right % 10 + slip[0])
    carry = ones // 10
    tens = left // 10 + right // 10 + carry + slip[1]
    steps = f"{left % 10}+{right % 10}={ones}, {left // 10}+{right // 10}{'+1' * carry}={tens}"
    return f"{steps}\n{ANSWER}{10 * tens + ones % 10}"
