"""Generated problems for tiny models: write a program that reads one or two numbers and prints a result.

The computation, not the names of the numbers, determines the split, so `train` and `test` are disjoint at any size.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Literal

from pydantic import Field

from dojang.data.section import GeneratedSection, number_of
from dojang.types import Message, Problem

__all__ = ["Formula", "TinyProgramsConfig", "formula", "is_held_out", "question"]

WORDS = {"+": "plus", "-": "minus", "*": "times"}
NAMES = "abcdkmnpqtxy"
TESTS = 4


class TinyProgramsConfig(GeneratedSection):
    """Tiny Python programs."""

    name: Literal["tiny_programs"] = "tiny_programs"
    train_size: int = Field(default=2048, ge=1, le=4096)
    test_size: int = Field(default=256, ge=1, le=512)

    def _draws(self) -> Iterator[tuple[str, bool, Callable[[], Problem]]]:
        for draw in count():
            drawn = formula(number_of(f"draw {draw} {place}") for place in count())
            yield f"{drawn.names} {drawn.text}", is_held_out(drawn), partial(_problem, drawn)


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula to print."""

    names: str
    """Names of the numbers it reads, one letter each."""
    parts: tuple[str, ...]
    """Names, operators and constants, as they are written in Python."""

    @property
    def text(self) -> str:
        """The formula as Python source."""
        return " ".join(self.parts)

    def value(self, numbers: tuple[int, ...]) -> int:
        """Evaluates the formula from left to right; a multiplication always comes first."""
        given = dict(zip(self.names, numbers, strict=True))
        terms = [given[part] if part in given else int(part) for part in self.parts[::2]]
        total = terms[0]
        for operator, term in zip(self.parts[1::2], terms[1:], strict=True):
            total = total + term if operator == "+" else total - term if operator == "-" else total * term
        return total


def formula(pick: Iterator[int]) -> Formula:
    """Returns a formula chosen by large, uniform numbers."""
    first = NAMES[next(pick) % len(NAMES)]
    second = [name for name in NAMES if name != first][next(pick) % (len(NAMES) - 1)]
    operator, constant, last = "+-*"[next(pick) % 3], str(2 + next(pick) % 98), "+-"[next(pick) % 2]
    parts = (
        (first, operator, constant),
        (first, operator, second, last, constant),
        (first, operator, constant, last, second),
        (second, operator, constant, last, first),
    )[next(pick) % 4]
    return Formula(first if len(parts) == 3 else first + second, parts)


def is_held_out(drawn: Formula) -> bool:
    """Returns whether it is in the test split, independent of the names of its numbers."""
    places = {name: str(place) for place, name in enumerate(drawn.names)}
    shape = " ".join(places.get(part, f"={part}") for part in drawn.parts)
    return number_of(f"side {shape}") % 8 == 0


def question(drawn: Formula) -> str:
    said = " ".join(WORDS.get(part, part) for part in drawn.parts)
    return f"Read {' and '.join(drawn.names)}. Print {said}."


def _problem(drawn: Formula) -> Problem:
    label = f"{drawn.names}/{drawn.text.replace(' ', '')}"
    tests = []
    for test in range(TESTS):
        numbers = tuple(2 + number_of(f"{label} {test} {name}") % 98 for name in drawn.names)
        tests.append({"input": "".join(f"{each}\n" for each in numbers), "output": f"{drawn.value(numbers)}\n"})
    return Problem(
        id=f"tiny_programs/{label}",
        source="tiny_programs",
        messages=(Message("user", question(drawn)),),
        reference={"language": "python3", "private": tests, "limits": {"cpu_s": 2.0, "memory_mb": 256}},
    )
