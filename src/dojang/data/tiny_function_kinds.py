"""Kinds of functions of `tiny_functions.py`: the result of each, and arguments for its tests.

Every kind has open constants, so it covers dozens of functions. Arguments are chosen so that the constants matter: a
list has numbers on both sides of a limit and the limit itself, a text has the letter that is counted.
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from typing import Any, TypeVar

__all__ = ["KINDS", "Constants", "Dice", "Kind"]

T = TypeVar("T")
Constants = Mapping[str, Any]

WORDS = (
    *("apple", "river", "stone", "cloud", "tiger", "piano", "lemon", "robot", "candle", "garden"),
    *("winter", "orange", "rocket", "pencil", "bridge", "silver", "forest", "window", "island", "butter"),
    *("sun", "fox", "map", "key", "box", "hat", "cup", "jam", "owl", "ink"),
)


class Dice:
    """Pseudorandom numbers from a text: the same on every platform and Python version, unlike `random`."""

    def __init__(self, text: str) -> None:
        self._numbers = _numbers(text)

    def below(self, end: int) -> int:
        return next(self._numbers) % end

    def between(self, low: int, high: int) -> int:
        return low + self.below(high - low + 1)

    def pick(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]


def _numbers(text: str) -> Iterator[int]:
    for block in count():
        yield from struct.unpack(">8I", sha256(f"{block} {text}".encode()).digest())


@dataclass(frozen=True, slots=True)
class Kind:
    """Functions that differ only in their constants."""

    name: str
    """Name of the function."""
    parameters: tuple[str, ...]
    """Possible parameter names."""
    returns: str
    """Description of the result: {0} and {1} are its parameters, the other braces its constants."""
    constants: Mapping[str, Sequence[Any]]
    arguments: Callable[[Dice, Constants], tuple[Any, ...]]
    answer: Callable[..., Any]
    """Called with the arguments, and the constants by name."""


NUMBER = ("x", "n", "number", "value")
NUMBERS = ("x, y", "a, b", "m, n")
LIST = ("numbers", "values", "items")
TEXT = ("text", "s", "word", "string")


def _number(dice: Dice, _: Constants) -> tuple[int]:
    return (dice.between(-20, 40),)


def _two_numbers(dice: Dice, _: Constants) -> tuple[int, int]:
    return dice.between(-12, 20), dice.between(-12, 20)


def _near_multiple(dice: Dice, constants: Constants) -> tuple[int]:
    return (constants["k"] * dice.between(1, 9) + dice.below(2) * dice.below(constants["k"]),)


def _list(dice: Dice, _: Constants) -> tuple[list[int]]:
    return ([dice.between(-20, 60) for _ in range(dice.between(4, 6))],)


def _longer_list(dice: Dice, constants: Constants) -> tuple[list[int]]:
    return ([dice.between(0, 30) for _ in range(constants["k"] + dice.between(1, 3))],)


def _around(dice: Dice, constants: Constants) -> tuple[list[int]]:
    """Returns two numbers on each side of k and k itself, in random order."""
    k = constants["k"]
    numbers = [k - dice.between(2, 50), k - 1, k, k + 1, k + dice.between(2, 50)]
    return (sorted(numbers, key=lambda _: dice.below(1000)),)


def _text(dice: Dice, _: Constants) -> tuple[str]:
    return (dice.pick(WORDS) + dice.pick(("", "s")),)


def _letters(dice: Dice, constants: Constants) -> tuple[str]:
    letters = (constants["letter"], *"abet")
    return ("".join(dice.pick(letters) for _ in range(dice.between(5, 9))),)


def _words(dice: Dice, _: Constants) -> tuple[list[str]]:
    return ([dice.pick(WORDS) for _ in range(dice.between(2, 4))],)


KINDS = (
    Kind("add_number", NUMBER, "{0} plus {k}", {"k": range(2, 100)}, _number, lambda x, k: x + k),
    Kind(
        "scale",
        NUMBER,
        "{0} times {a} plus {b}",
        {"a": range(2, 13), "b": range(1, 21)},
        _number,
        lambda x, a, b: x * a + b,
    ),
    Kind("square_plus", NUMBER, "the square of {0} plus {k}", {"k": range(1, 100)}, _number, lambda x, k: x * x + k),
    Kind(
        "multiply_add",
        NUMBERS,
        "the product of {0} and {1}, plus {k}",
        {"k": range(1, 100)},
        _two_numbers,
        lambda x, y, k: x * y + k,
    ),
    Kind(
        "distance",
        NUMBERS,
        "the absolute difference of {0} and {1}, times {k}",
        {"k": range(2, 100)},
        _two_numbers,
        lambda x, y, k: abs(x - y) * k,
    ),
    Kind(
        "is_divisible",
        NUMBER,
        "True if {0} is divisible by {k}, otherwise False",
        {"k": range(3, 100)},
        _near_multiple,
        lambda n, k: n % k == 0,
    ),
    Kind(
        "largest_plus",
        LIST,
        "the largest number in the list {0}, plus {k}",
        {"k": range(1, 100)},
        _list,
        lambda numbers, k: max(numbers) + k,
    ),
    Kind(
        "sum_above",
        LIST,
        "the sum of the numbers in the list {0} that are greater than {k}",
        {"k": range(1, 100)},
        _around,
        lambda numbers, k: sum(each for each in numbers if each > k),
    ),
    Kind(
        "keep_below",
        LIST,
        "only the numbers in the list {0} that are less than {k}, as a list",
        {"k": range(1, 100)},
        _around,
        lambda numbers, k: [each for each in numbers if each < k],
    ),
    Kind(
        "first_few",
        LIST,
        "a slice of the list {0} with its first {k} elements",
        {"k": range(2, 10)},
        _longer_list,
        lambda items, k: items[:k],
    ),
    Kind(
        "last_few",
        LIST,
        "a slice of the list {0} with its last {k} elements",
        {"k": range(2, 10)},
        _longer_list,
        lambda items, k: items[-k:],
    ),
    Kind(
        "count_letter",
        TEXT,
        "how many times the letter '{letter}' occurs in {0}",
        {"letter": "abcdefghijklmnopqrstuvwxyz"},
        _letters,
        lambda text, letter: text.count(letter),
    ),
    Kind("repeat_text", TEXT, "{0} repeated {k} times", {"k": range(3, 14)}, _text, lambda text, k: text * k),
    Kind("add_word", TEXT, "{0} followed by '{word}'", {"word": WORDS}, _text, lambda text, word: text + word),
    Kind(
        "reverse_and_add_word",
        TEXT,
        "{0} reversed, followed by '{word}'",
        {"word": WORDS},
        _text,
        lambda text, word: text[::-1] + word,
    ),
    Kind(
        "join_words",
        ("words", "strings", "parts"),
        "the strings in the list {0} joined with '{separator}'",
        {"separator": (*"-+/:;,|_.*#&=~@%$!?", ", ", "; ", " - ", " + ", " / ", " and ", " or ", "...", "->")},
        _words,
        lambda words, separator: separator.join(words),
    ),
)
