"""Two-operand addition, made on the spot: the quickstart's dataset.

A problem's side of the split follows from its operands alone, so `train` and `test` stay disjoint whatever
sizes are asked for, and a model pretrained away from `is_held_out` problems has never met a test problem.
"""

from collections.abc import Iterator
from hashlib import sha256
from typing import ClassVar, Literal

from pydantic import Field

from dojang.core.errors import DataError
from dojang.data.section import DataSection
from dojang.types import Message, Problem

__all__ = ["ArithmeticConfig", "is_held_out", "question", "worked"]


class ArithmeticConfig(DataSection):
    """Addition of two numbers."""

    stop: ClassVar[tuple[str, ...]] = ()
    name: Literal["arithmetic"] = "arithmetic"
    digits: int = Field(default=2, ge=2, le=6)
    """How many digits each operand has."""
    # The upper limits are what two digits can fill: 8,100 pairs, about an eighth of them held out.
    train_size: int = Field(default=4096, ge=1, le=4096)
    """How many training problems there are."""
    test_size: int = Field(default=256, ge=1, le=512)
    """How many held-out problems there are."""

    def read(self, split: str) -> list[Problem]:
        """The problems of the `train` or `test` split, in an order that never changes."""
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
    """Whether the pair belongs to the test side; swapping the operands does not change sides."""
    return _number(f"side {min(left, right)}+{max(left, right)}") % 8 == 0


def question(left: int, right: int) -> str:
    """The problem as it is posed."""
    return f"What is {left} + {right}?"


def worked(left: int, right: int) -> str:
    """The sum by column addition, ones and then tens with the carry: a completion for supervised fine-tuning."""
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
        columns={"completion": worked(left, right)},
    )


def _pairs(digits: int) -> Iterator[tuple[int, int]]:
    """Operand pairs in a fixed shuffled order, for ever; a pair may come more than once."""
    smallest = 10 ** (digits - 1)
    count = 9 * smallest
    draw = 0
    while True:
        left, right = divmod(_number(f"draw {draw}") % count**2, count)
        yield smallest + left, smallest + right
        draw += 1


def _number(text: str) -> int:
    """A number fixed by the text: the same on every platform and in every Python, unlike `hash` or `random`."""
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big")
