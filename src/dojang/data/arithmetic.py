"""Generated two-operand addition: the quickstart's dataset.

The operands alone determine a problem's split, so `train` and `test` are disjoint at any size, and a model pretrained
without `is_held_out` problems has never seen a test problem.
"""

from collections.abc import Iterator
from hashlib import sha256
from typing import ClassVar, Literal

from pydantic import Field

from dojang.core.errors import DataError
from dojang.data.section import DataSection
from dojang.types import Message, Problem

__all__ = ["ArithmeticConfig", "is_held_out", "question", "worked_solution"]


class ArithmeticConfig(DataSection):
    """Addition of two numbers."""

    stop: ClassVar[tuple[str, ...]] = ()
    name: Literal["arithmetic"] = "arithmetic"
    digits: int = Field(default=2, ge=2, le=6)
    """Number of digits of each operand."""
    # The upper limits are what two digits can fill: 8,100 pairs, about an eighth of them held out.
    train_size: int = Field(default=4096, ge=1, le=4096)
    """Number of training problems."""
    test_size: int = Field(default=256, ge=1, le=512)
    """Number of held-out problems."""

    def read(self, split: str) -> list[Problem]:
        """Returns the problems of the `train` or `test` split, in a fixed order."""
        if split not in ("train", "test"):
            raise DataError(f"the arithmetic data has no split {split!r}; use 'train' or 'test'")
        size = self.test_size if split == "test" else self.train_size
        chosen: dict[tuple[int, int], None] = {}  # a dict because, unlike a set, it keeps the order
        for left, right in _pairs(self.digits):
            if is_held_out(left, right) == (split == "test"):
                chosen[left, right] = None
                if len(chosen) == size:
                    break
        return [_problem(left, right) for left, right in chosen]


def is_held_out(left: int, right: int) -> bool:
    """Returns whether the pair is in the test split; swapping the operands does not change the split."""
    return _number(f"side {min(left, right)}+{max(left, right)}") % 8 == 0


def question(left: int, right: int) -> str:
    """Returns the question."""
    return f"What is {left} + {right}?"


def worked_solution(left: int, right: int) -> str:
    """Returns the sum by column addition, ones and then tens with the carry: a completion for SFT."""
    ones, tens = left % 10 + right % 10, left // 10 + right // 10
    carry = ones // 10
    steps = f"{left % 10}+{right % 10}={ones}, {left // 10}+{right // 10}{'+1' * carry}={tens + carry}"
    return f"{steps}\n#### The final answer is {left + right}"


def _problem(left: int, right: int) -> Problem:
    return Problem(
        id=f"arithmetic/{left}+{right}",
        source="arithmetic",
        messages=(Message("user", question(left, right)),),
        reference=str(left + right),
        columns={"completion": worked_solution(left, right)},
    )


def _pairs(digits: int) -> Iterator[tuple[int, int]]:
    """Yields operand pairs endlessly in a fixed shuffled order; pairs may repeat."""
    smallest = 10 ** (digits - 1)
    count = 9 * smallest
    draw = 0
    while True:
        left, right = divmod(_number(f"draw {draw}") % count**2, count)
        yield smallest + left, smallest + right
        draw += 1


def _number(text: str) -> int:
    """Hashes the text to a number: the same on every platform and Python version, unlike `hash` or `random`."""
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big")
