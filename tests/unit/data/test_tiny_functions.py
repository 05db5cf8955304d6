import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from pydantic import ValidationError

from dojang.core.errors import DataError
from dojang.core.paths import cache_root
from dojang.data.tiny_function_kinds import KINDS, Kind
from dojang.data.tiny_functions import FunctionsConfig, is_held_out
from dojang.judge.pool import JudgePool
from dojang.programs import CallTest
from dojang.tasks.code import CodeConfig
from dojang.types import Message, Outcome, Problem, Verdict

LARGEST = FunctionsConfig(train_size=2048, test_size=256)
SOLUTIONS = {
    "add_number": "return {0} + {k}",
    "scale": "return {0} * {a} + {b}",
    "square_plus": "return {0} ** 2 + {k}",
    "multiply_add": "return {0} * {1} + {k}",
    "distance": "return max({0} - {1}, {1} - {0}) * {k}",
    "is_divisible": "return {0} // {k} * {k} == {0}",
    "largest_plus": "return sorted({0})[-1] + {k}",
    "sum_above": "total = 0\n    for each in {0}:\n        if each > {k}:\n            total += each\n    return total",
    "keep_below": "return [each for each in {0} if {k} > each]",
    "first_few": "return [{0}[at] for at in range({k})]",
    "last_few": "return {0}[len({0}) - {k}:]",
    "count_letter": "return sum(each == '{letter}' for each in {0})",
    "repeat_text": "return ''.join({0} for _ in range({k}))",
    "add_word": "return {0} + '{word}'",
    "reverse_and_add_word": "return ''.join(reversed({0})) + '{word}'",
    "join_words": "return '{separator}'.join({0})",
}
"""Written apart from the dataset's own answers."""

LAZY: tuple[Callable[..., Any], ...] = (
    lambda *given: given[0],
    lambda *given: given[-1],
    lambda *given: sum(given),
    lambda *given: -given[0],
    lambda *given: abs(given[0] - given[-1]),
    lambda *given: given[0] * given[-1],
    lambda *given: sum(given[0]),
    lambda *given: max(given[0]),
    lambda *given: len(given[0]),
    lambda *given: sorted(given[0]),
    lambda *given: given[0][::-1],
    lambda *given: given[0] + given[0],
    lambda *given: given[0][1:],
    lambda *given: given[0][:-1],
    lambda *given: "".join(given[0]),
    lambda *given: " ".join(given[0]),
)


def parts(problem: Problem) -> tuple[Kind, str, dict[str, Any]]:
    """The kind, the parameters and the constants that the problem's id tells."""
    _, signature, values = problem.id.split("/", 2)
    name, _, parameters = signature.rstrip(")").partition("(")
    (kind,) = (kind for kind in KINDS if kind.name == name)
    return kind, parameters, eval(f"dict({values})")


def solution(problem: Problem) -> str:
    kind, parameters, constants = parts(problem)
    body = SOLUTIONS[kind.name].format(*parameters.split(", "), **constants)
    return f"def {kind.name}({parameters}):\n    {body}\n"


def checks_of(problem: Problem, which: str = "private") -> list[str]:
    assert isinstance(problem.reference, dict)
    return [test.code for test in problem.reference[which]]


def passed(checks: list[Any], function: Callable[..., Any]) -> int:
    count = 0
    for check in checks:
        try:
            exec(check, {"candidate": function})
        except Exception:
            continue
        count += 1
    return count


@pytest.fixture(scope="module")
def everything() -> list[Problem]:
    return [problem for split in ("train", "test") for problem in LARGEST.load(split)]


def test_a_problem_has_prompt_and_tests() -> None:
    checks = ("(30) == 111", "(2) == 83", "(-13) == 68", "(9) == 90", "(5) == 86", "(19) == 100")
    assert FunctionsConfig().load("train")[0] == Problem(
        id="functions/add_number(n)/k=81",
        source="functions",
        messages=(
            Message(
                "user",
                "Write a Python function add_number(n) that returns n plus 81. For example, add_number(33) returns "
                "114. Answer with the function alone, in a ```python block.",
            ),
        ),
        reference={
            "language": "python3",
            "public": (CallTest("assert candidate(33) == 114", "add_number"),),
            "private": tuple(CallTest(f"assert candidate{check}", "add_number") for check in checks),
        },
    )


@pytest.mark.parametrize(
    ("split", "ids"),
    [
        ("train", ["add_number(n)/k=81", "scale(number)/a=10,b=4", "square_plus(number)/k=2"]),
        ("test", ["is_divisible(number)/k=21", "keep_below(items)/k=59", "first_few(values)/k=3"]),
    ],
)
def test_problems_are_deterministic(split: str, ids: list[str]) -> None:
    problems = FunctionsConfig(train_size=3, test_size=3).load(split)
    assert [problem.id.removeprefix("functions/") for problem in problems] == ids


def test_splits_have_their_sizes_and_share_no_function(everything: list[Problem]) -> None:
    train, test = everything[:2048], everything[2048:]
    assert len(test) == 256
    assert len({problem.id for problem in everything}) == len({problem.messages for problem in everything}) == 2304
    for problems, held_out in ((train, False), (test, True)):
        for kind, _, constants in map(parts, problems):
            assert is_held_out(kind, constants) == held_out  # whatever the parameters are called


def test_a_size_does_not_move_problems_across_the_split() -> None:
    small, large = FunctionsConfig(train_size=10, test_size=10), FunctionsConfig()
    for split in ("train", "test"):
        assert small.load(split) == large.load(split)[:10]


@pytest.mark.parametrize("split", ["train", "test"])
def test_there_are_problems_of_every_kind(split: str) -> None:
    problems = FunctionsConfig().load(split)
    counts = Counter(parts(problem)[0].name for problem in problems)
    assert set(counts) == {kind.name for kind in KINDS} == set(SOLUTIONS)
    assert max(counts.values()) < len(problems) / 8


def test_question_is_complete(everything: list[Problem]) -> None:
    for problem in everything:
        kind, parameters, constants = parts(problem)
        (message,) = problem.messages
        assert message.role == "user"
        assert f" {kind.name}({parameters}) " in message.content
        assert all(str(value) in message.content for value in constants.values())
        assert "{" not in message.content
        (example,) = checks_of(problem, "public")
        call, _, answer = example.removeprefix("assert candidate").partition(" == ")
        assert f"{call} returns {answer}. " in message.content
        assert example not in checks_of(problem)
        assert len(set(checks_of(problem))) == 6


def test_every_solution_passes_and_no_lazy_function_does(everything: list[Problem]) -> None:
    for problem in everything:
        checks = [compile(code, "test", "exec") for code in checks_of(problem)]
        space: dict[str, Any] = {}
        exec(solution(problem), space)
        assert passed(checks, space[parts(problem)[0].name]) == 6
        for lazy in LAZY:
            assert passed(checks, lazy) < 6, problem.id
        for answer in {code.partition(" == ")[2] for code in checks_of(problem)}:
            assert passed(checks, eval(f"lambda *given: {answer}")) <= 4, problem.id


def test_no_function_with_another_constant_passes(everything: list[Problem]) -> None:
    for problem in everything:
        kind, _, constants = parts(problem)
        checks = [compile(code, "test", "exec") for code in checks_of(problem)]
        for other in neighbours(kind, constants):
            assert passed(checks, partial(kind.answer, **other)) < 6, problem.id


def neighbours(kind: Kind, constants: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name, values in kind.constants.items():
        at = list(values).index(constants[name])
        for near in (at - 1, at + 1):
            yield {**constants, name: values[near % len(values)]}


def grade(answers: list[tuple[Problem, str]]) -> list[Verdict]:
    """By the real judge."""

    async def together() -> list[Verdict]:
        async with JudgePool(cache=cache_root(), workers=2) as judge:
            task = CodeConfig().make({"train": [problem for problem, _ in answers]}, judge)
            return await asyncio.gather(*(task.grade(problem, text) for problem, text in answers))

    return asyncio.run(together())


def test_the_judge_accepts_a_solution_of_every_kind() -> None:
    one_of_each = {parts(problem)[0].name: problem for problem in FunctionsConfig().load("test")}
    assert len(one_of_each) == len(KINDS)
    answers = [(problem, f"Here it is:\n```python\n{solution(problem)}```\n") for problem in one_of_each.values()]
    for (problem, _), verdict in zip(answers, grade(answers), strict=True):
        assert (verdict.outcome, verdict.reward, verdict.total) == (Outcome.ACCEPTED, 1.0, 6), problem.id


def test_rewards_of_answers() -> None:
    (problem,) = FunctionsConfig(train_size=1).load("train")
    expected = {
        "I would add the two.": (Outcome.NO_ANSWER, -1.0),
        "```python\ndef add_number(n):\n    return n + 81\n": (Outcome.NO_ANSWER, -1.0),
        "```python\ndef add_number(n)\n    return n + 81\n```": (Outcome.COMPILE_ERROR, -0.5),
        "```python\ndef add(n):\n    return n + 81\n```": (Outcome.RUNTIME_ERROR, 0.0),
        "```python\ndef add_number(n):\n    return n\n```": (Outcome.WRONG, 0.0),
        "```python\ndef add_number(n):\n    return abs(n) + 81\n```": (Outcome.WRONG, 5 / 6),
        "```python\ndef add_number(n):\n    return n + 81\n```": (Outcome.ACCEPTED, 1.0),
    }
    verdicts = grade([(problem, text) for text in expected])
    assert [(verdict.outcome, verdict.reward) for verdict in verdicts] == list(expected.values())


def test_an_unknown_split_is_named_with_the_known_ones() -> None:
    with pytest.raises(DataError, match="no split 'dev'; use 'train' or 'test'"):
        FunctionsConfig().load("dev")


@pytest.mark.parametrize("setting", [{"train_size": 0}, {"train_size": 2049}, {"test_size": 257}, {"size": 3}])
def test_settings_out_of_bounds_are_refused(setting: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match=next(iter(setting))):
        FunctionsConfig.model_validate(setting)


def test_torch_is_not_loaded() -> None:
    program = "import sys, dojang.data.tiny_functions; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
