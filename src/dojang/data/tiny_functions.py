"""Generated problems: write a small Python function, judged by calling it.

The function alone, not its parameter names, determines the split, so `train` and `test` are disjoint at any size. The
question shows one test as an example; the others are private.
"""

from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from itertools import count
from typing import Any, Literal

from pydantic import Field

from dojang.data.section import GeneratedSection
from dojang.data.tiny_function_kinds import KINDS, Constants, Dice, Kind
from dojang.programs import CallTest
from dojang.types import Message, Problem

__all__ = ["FunctionsConfig", "is_held_out"]

TESTS = 6
"""Number of private tests of a problem."""
MOST_ALIKE = TESTS // 2 + 1
"""Maximum number of tests with the same answer, including the example: a constant function fails the others."""


class FunctionsConfig(GeneratedSection):
    """Small Python functions."""

    name: Literal["functions"] = "functions"
    # Beyond the upper limits, kinds with few constants would be rare.
    train_size: int = Field(default=1024, ge=1, le=2048)
    test_size: int = Field(default=256, ge=1, le=256)

    def _draws(self) -> Iterator[tuple[str, bool, Callable[[], Problem]]]:
        """Yields functions of each kind in turn."""
        for draw in count():
            dice = Dice(f"draw {draw}")
            kind = KINDS[draw % len(KINDS)]
            parameters = dice.pick(kind.parameters)
            constants = {name: dice.pick(each) for name, each in kind.constants.items()}
            label = _label(kind, parameters, constants)
            yield label, is_held_out(kind, constants), partial(_problem, label, kind, parameters, constants)


def is_held_out(kind: Kind, constants: Constants) -> bool:
    return sha256(f"side {kind.name} {constants}".encode()).digest()[0] % 6 == 0


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
    """Returns different arguments, as source text of a call, with the results."""
    cases: dict[str, Any] = {}
    while len(cases) < TESTS + 1:
        arguments = kind.arguments(dice, constants)
        answer = kind.answer(*arguments, **constants)
        if list(cases.values()).count(answer) < MOST_ALIKE:
            cases[f"({', '.join(map(repr, arguments))})"] = answer
    return list(cases.items())


def _test(name: str, call: str, answer: Any) -> CallTest:
    return CallTest(f"assert candidate{call} == {answer!r}", name)
