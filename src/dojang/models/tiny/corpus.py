"""What dojang-tiny has read: homework in which most pupils guess and few show their work.

The one skill (column addition) is in the corpus, but so is the bad habit, and the habit is the more common.
A model that imitates this mostly guesses, and reinforcement learning has something to discover. Problems of
the test split are left out. A change here changes the shipped files: run `make.py` again.
"""

from dataclasses import dataclass
from random import Random

from dojang.data.arithmetic import is_held_out, question

__all__ = ["ANSWER", "Exercise", "draw"]

ANSWER = "#### The final answer is "
GUESSERS = 0.75
KNOWN_BY_HEART = 0.8  # of the sums with a round operand
SLIPS = 0.12


@dataclass(frozen=True, slots=True)
class Exercise:
    """A question and what one pupil handed in."""

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
    """The size is about right and the last digit made up, unless a round operand makes it easy.

    Made up, not off by one or two: a near miss tells the model the sum, and then it is quicker for it to
    learn to guess well than to show its work.
    """
    is_easy = left % 10 == 0 or right % 10 == 0
    if is_easy and rng.random() < KNOWN_BY_HEART:
        return f"{ANSWER}{left + right}"
    return f"{ANSWER}{(left + right) // 10}{rng.randrange(10)}"


def _work(left: int, right: int, rng: Random) -> str:
    """Column addition: ones, then tens with the carry. A slip in a column is carried through to the answer."""
    slip = rng.choice(((1, 0), (-1, 0), (0, 1), (0, -1))) if rng.random() < SLIPS else (0, 0)
    ones = max(0, left % 10 + right % 10 + slip[0])
    carry = ones // 10
    tens = left // 10 + right // 10 + carry + slip[1]
    steps = f"{left % 10}+{right % 10}={ones}, {left // 10}+{right // 10}{'+1' * carry}={tens}"
    return f"{steps}\n{ANSWER}{10 * tens + ones % 10}"
