"""Small Python functions to write, made on the spot and judged by calling them.

Which side of the split a problem is on follows from the function alone, not from what its parameters are called, so
`train` and `test` stay disjoint whatever sizes are asked for. One test is shown in the question as an example and the
others are private.
"""

from collections.abc import Iterator
from hashlib import sha256
from itertools import count
from typing import Any, ClassVar, Literal

from pydantic import Field

from dojang.core.errors import DataError
from dojang.data.section import DataSection
from dojang.data.tiny_function_kinds import KINDS, Constants, Dice, Kind
from dojang.programs import CallTest
from dojang.types import Message, Problem

__all__ = ["FunctionsConfig", "is_held_out"]

TESTS = 6
"""Private tests of a problem."""
MOST_ALIKE = TESTS // 2 + 1
"""Tests that may have the same answer, the example included: a function that ignores its arguments fails others."""


class FunctionsConfig(DataSection):
    """Small Python functions."""

    stop: ClassVar[tuple[str, ...]] = ()
    name: Literal["functions"] = "functions"
    # Beyond the upper limits the kinds with few constants would hardly be seen.
    train_size: int = Field(default=1024, ge=1, le=2048)
    """How many training problems there are."""
    test_size: int = Field(default=256, ge=1, le=256)
    """How many held-out problems there are."""

    def read(self, split: str) -> list[Problem]:
        """The problems of the `train` or `test` split, in an order that never changes."""
        if split not in ("train", "test"):
            raise DataError(f"the functions data has no split {split!r}; use 'train' or 'test'")
        size = self.test_size if split == "test" else self.train_size
        chosen: dict[str, Problem] = {}
        for kind, parameters, constants in _draws():
            label = _label(kind, parameters, constants)
            if label not in chosen and is_held_out(kind, constants) == (split == "test"):
                chosen[label] = _problem(label, kind, parameters, constants)
                if len(chosen) == size:
                    break
        return list(chosen.values())


def is_held_out(kind: Kind, constants: Constants) -> bool:
    """Whether the function belongs to the test side."""
    return sha256(f"side {kind.name} {constants}".encode()).digest()[0] % 6 == 0


def _draws() -> Iterator[tuple[Kind, str, Constants]]:
    """Functions of each kind in turn, for ever; one may come more than once."""
    for draw in count():
        dice = Dice(f"draw {draw}")
        kind = KINDS[draw % len(KINDS)]
        yield kind, dice.pick(kind.parameters), {name: dice.pick(each) for name, each in kind.constants.items()}


def _label(kind: Kind, parameters: str, constants: Constants) -> str:
    values = ",".join(f"{name}={value!r}" for name, value in constants.items())
    return f"functions/{kind.name}({parameters})/{values}"


def _problem(label: str, kind: Kind, parameters: str, constants: Constants) -> Problem:
    returns = kind.returns.format(*parameters.split(", "), **constants)
    (example, answer), *cases = _cases(kind, constants, Dice(label))
    question = (
        f"Write a Python function {kind.name}({parameters}) that returns {returns}. "
        f"For example, {kind.name}{example} returns {answer!r}. "
        "Answer with the function alone, in a ```python block."
    )
    return Problem(
        id=label,
        source="functions",
        messages=(Message("user", question),),
        reference={  # what the code task takes, as a mapping
            "language": "python3",
            "public": (_test(kind.name, example, answer),),
            "private": tuple(_test(kind.name, call, answer) for call, answer in cases),
        },
    )


def _cases(kind: Kind, constants: Constants, dice: Dice) -> list[tuple[str, Any]]:
    """Different arguments, as they are written in a call, and what the function returns."""
    cases: dict[str, Any] = {}
    while len(cases) < TESTS + 1:
        arguments = kind.arguments(dice, constants)
        answer = kind.answer(*arguments, **constants)
        if list(cases.values()).count(answer) < MOST_ALIKE:
            cases[f"({', '.join(map(repr, arguments))})"] = answer
    return list(cases.items())


def _test(name: str, call: str, answer: Any) -> CallTest:
    return CallTest(f"assert candidate{call} == {answer!r}", name)
