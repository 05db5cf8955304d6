"""Generated sums of two numbers, the quickstart's dataset, or products.

The operands alone determine a problem's split, so `train` and `test` are disjoint at any size, and a model pretrained
without `is_held_out` problems has never seen a test problem.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

from pydantic import Field

from dojang.data.messages import with_system
from dojang.data.section import GeneratedSection, number_of
from dojang.types import Message, Problem

__all__ = ["ArithmeticConfig", "is_held_out", "question", "worked_product", "worked_solution"]


class ArithmeticConfig(GeneratedSection):
    """Addition or multiplication of two numbers."""

    name: Literal["arithmetic"] = "arithmetic"
    operation: Literal["add", "multiply"] = "add"
    """Sums or products."""
    digits: int = Field(default=2, ge=2, le=9)
    """Number of digits of each operand."""
    system: str | None = None
    """System prompt, which tells a pretrained model the form of the answer; null: no system prompt."""
    # The upper limits are what two digits can fill: 8,100 pairs, about an eighth of them held out.
    train_size: int = Field(default=4096, ge=1, le=4096)
    test_size: int = Field(default=256, ge=1, le=512)

    def _draws(self) -> Iterator[tuple[str, bool, Callable[[], Problem]]]:
        smallest = 10 ** (self.digits - 1)
        count = 9 * smallest
        for draw in itertools.count():
            left, right = (smallest + each for each in divmod(number_of(f"draw {draw}") % count**2, count))
            yield f"{left} {right}", is_held_out(left, right), partial(self._problem, left, right)

    def _problem(self, left: int, right: int) -> Problem:
        adds = self.operation == "add"
        return Problem(
            id=f"arithmetic/{left}{'+' if adds else '*'}{right}",
            source="arithmetic",
            messages=with_system(self.system, (Message("user", question(left, right, self.operation)),)),
            reference=str(left + right if adds else left * right),
            columns={"completion": (worked_solution if adds else worked_product)(left, right)},
        )


def is_held_out(left: int, right: int) -> bool:
    """Returns whether the pair is in the test split; swapping the operands does not change the split."""
    return number_of(f"side {min(left, right)}+{max(left, right)}") % 8 == 0


def question(left: int, right: int, operation: Literal["add", "multiply"] = "add") -> str:
    return f"What is {left} {'+' if operation == 'add' else '*'} {right}?"


def worked_solution(left: int, right: int) -> str:
    """Returns the sum by column addition, ones and then tens with the carry: a completion for SFT."""
    ones, tens = left % 10 + right % 10, left // 10 + right // 10
    carry = ones // 10
    steps = f"{left % 10}+{right % 10}={ones}, {left // 10}+{right // 10}{'+1' * carry}={tens + carry}"
    return f"{steps}\n#### The final answer is {left + right}"


def worked_product(left: int, right: int) -> str:
    """Returns the product as the sum of the products with each digit of `right`: a completion for SFT."""
    parts = [left * int(digit) * 10**place for place, digit in enumerate(reversed(str(right)))]
    return f"{'+'.join(map(str, parts))}\n#### The final answer is {left * right}"
