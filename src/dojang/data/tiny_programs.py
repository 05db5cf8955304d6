"""Generated problems for tiny models: write a program that reads one or two numbers and prints a result.

The computation, not the names of the numbers, determines the split, so `train` and `test` are disjoint at any size.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from typing import ClassVar, Literal

from pydantic import Field

from dojang.core.errors import DataError
from dojang.data.section import DataSection
from dojang.types import Message, Problem

__all__ = ["Formula", "TinyProgramsConfig", "formula", "is_held_out", "question"]

WORDS = {"+": "plus", "-": "minus", "*": "times"}
NAMES = "abcdkmnpqtxy"
TESTS = 4


class TinyProgramsConfig(DataSection):
    """Tiny Python programs."""

    stop: ClassVar[tuple[str, ...]] = ()
    name: Literal["tiny_programs"] = "tiny_programs"
    train_size: int = Field(default=2048, ge=1, le=4096)
    """Number of training problems."""
    test_size: int = Field(default=256, ge=1, le=512)
    """Number of held-out problems."""

    def read(self, split: str) -> list[Problem]:
        """Returns the problems of the `train` or `test` split, in a fixed order."""
        if split not in ("train", "test"):
            raise DataError(f"the tiny programs have no split {split!r}; use 'train' or 'test'")
        size = self.test_size if split == "test" else self.train_size
        chosen: dict[Formula, Problem] = {}
        for drawn in _draws():
            if drawn not in chosen and is_held_out(drawn) == (split == "test"):
                chosen[drawn] = _problem(drawn)
                if len(chosen) == size:
                    break
        return list(chosen.values())


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
    return _number(f"side {shape}") % 8 == 0


def question(drawn: Formula) -> str:
    """Returns the question."""
    said = " ".join(WORDS.get(part, part) for part in drawn.parts)
    return f"Read {' and '.join(drawn.names)}. Print {said}."


def _problem(drawn: Formula) -> Problem:
    label = f"{drawn.names}/{drawn.text.replace(' ', '')}"
    tests = []
    for test in range(TESTS):
        numbers = tuple(2 + _number(f"{label} {test} {name}") % 98 for name in drawn.names)
        tests.append({"input": "".join(f"{each}\n" for each in numbers), "output": f"{drawn.value(numbers)}\n"})
    return Problem(
        id=f"tiny_programs/{label}",
        source="tiny_programs",
        messages=(Message("user", question(drawn)),),
        reference={"language": "python3", "private": tests, "limits": {"cpu_s": 2.0, "memory_mb": 256}},
    )


def _draws() -> Iterator[Formula]:
    """Yields formulas endlessly in a fixed shuffled order; formulas may repeat."""
    for draw in count():
        yield formula(_number(f"draw {draw} {place}") for place in count())


def _number(text: str) -> int:
    """Hashes the text to a number: the same on every platform and Python version, unlike `hash` or `random`."""

    return int.from_bytes(sha256(text.encode()).digest()[:8], "big")
