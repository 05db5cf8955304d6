"""`dojang` with a judge that takes its time, never twice the same, and finds something to praise in what nobody could
run: for runs of two models too small to write programs or test cases."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from dojang.commands import main
from dojang.programs import CallTest, IoTest, Isolation, Judgement, TestResult, fold
from dojang.tasks.code import CodeTask
from dojang.types import Message, Outcome, Problem, Verdict
from dojang.workflows import coder_tester
from dojang.workflows.test_cases import Case, InvalidCases

TESTS = {"private": [{"input": "1", "output": "1"}]}


def problems(split: str) -> list[Problem]:
    return [Problem(f"{split}/{n}", "toys", (Message("user", f"What is {n} + 1?"),), TESTS) for n in range(6)]


def number(*texts: str) -> int:
    return sum(map(sum, (text.encode() for text in texts)))


async def grade(self: CodeTask, problem: Problem, text: str) -> Verdict:
    await asyncio.sleep(random.random() / 20)
    right = number(text) % 2 == 0
    return Verdict(Outcome.ACCEPTED if right else Outcome.WRONG, float(right))


async def trial(self: CodeTask, problem: Problem, text: str, tests: Sequence[IoTest | CallTest]) -> Judgement:
    await asyncio.sleep(random.random() / 20)
    outcomes = [Outcome.ACCEPTED if number(text, str(test)) % 2 else Outcome.WRONG for test in tests]
    results = tuple(TestResult(at, outcome) for at, outcome in enumerate(outcomes))
    return Judgement(fold(results), results, len(tests), Isolation.NONE)


def parse_cases(text: str, **_: Any) -> tuple[Case, ...]:
    if number(text) % 5 == 0:
        raise InvalidCases("it has its day off")
    given = str(number(text))
    return (Case(given, "2", IoTest(given, "2")),)


if __name__ == "__main__":
    CodeTask.grade, CodeTask.trial, coder_tester.parse_cases = grade, trial, parse_cases  # type: ignore[method-assign]
    main()
