"""Datasets that are not here, on rows in the layouts they are published in."""

import asyncio
import base64
import json
import pickle
import zlib
from collections.abc import Mapping
from datetime import date
from typing import Any

import pytest

from dojang.data.deepcoder import Codeforces, DeepCoder
from dojang.data.deepmath import DeepMath
from dojang.data.livecodebench import LiveCodeBench
from dojang.data.prepare import Unusable
from dojang.judge.pool import JudgePool
from dojang.places import cache_root
from dojang.tasks.code import CodeConfig
from dojang.types import Outcome, Problem

STDIN = {
    "problem": "Add two numbers.",
    "solutions": ["print(sum(map(int, input().split())))"],
    "tests": json.dumps([{"type": "stdin_stdout", "input": f"{a} {a}\n", "output": f"{2 * a}\n"} for a in range(3)]),
}
FUNCTION = {
    "problem": "Pair a number with itself.",
    "solutions": ["def pair(a): return a, a"],
    "tests": json.dumps(
        [{"type": "function_call", "fn_name": "pair", "input": [a], "output": [[a, a]]} for a in range(3)]
    ),
}
CODEFORCES = {"problem": "Add two numbers.", "tests": json.dumps([{"input": "1 2", "output": "3"}])}


def packed(tests: object) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


LIVE: dict[str, Any] = {
    "question_title": "Add",
    "question_content": "Add two numbers.",
    "platform": "leetcode",
    "question_id": "abc1_a",
    "contest_id": "abc1",
    "contest_date": "2024-06-01T00:00:00",
    "starter_code": "class Solution:\n    def add(self, a: int, b: int) -> int:\n        ",
    "difficulty": "easy",
    "public_test_cases": json.dumps([{"input": "1\n2", "output": "3", "testtype": "functional"}]),
    "private_test_cases": packed([{"input": "[1, 2]\n[3]", "output": "[1, 2, 3]", "testtype": "functional"}]),
    "metadata": json.dumps({"func_name": "add"}),
}


def outcome(problem: Problem, program: str) -> Outcome:
    async def grade() -> Outcome:
        async with JudgePool(cache=cache_root(), workers=1) as judge:
            task = CodeConfig(tests="all").make({"test": [problem]}, judge)
            return (await task.grade(problem, f"```python\n{program}\n```")).outcome

    return asyncio.run(grade())


@pytest.mark.parametrize(
    ("problem", "right", "wrong"),
    [
        (DeepCoder().problem(STDIN, ""), "print(sum(map(int, input().split())))", "print(2)"),
        (DeepCoder().problem(FUNCTION, ""), "def pair(a): return a, a", "def pair(a): return [a]"),
        (Codeforces().problem(CODEFORCES, ""), "print(sum(map(int, input().split())))", "print(2)"),
        (
            LiveCodeBench().problem(LIVE, ""),
            "class Solution:\n    def add(self, a, b):\n        return a + b",
            "class Solution:\n    def add(self, a, b):\n        return b",
        ),
    ],
    ids=["stdin", "function", "codeforces", "livecodebench"],
)
def test_right_programs_are_accepted_and_wrong_ones_are_not(problem: Problem, right: str, wrong: str) -> None:
    assert "solutions" not in repr(problem)
    assert outcome(problem, right) is Outcome.ACCEPTED
    assert outcome(problem, wrong) is Outcome.WRONG


def test_where_they_belong_and_how_they_are_named() -> None:
    assert DeepCoder().split("primeintellect/train-00000.parquet", STDIN) == "train"
    assert Codeforces().split("codeforces/test-0.parquet", CODEFORCES) == LiveCodeBench().split("x", LIVE) == "test"
    one, same, other = (DeepCoder().problem(row, "") for row in (STDIN, dict(STDIN), FUNCTION))
    assert one.id == same.id != other.id
    assert one.id.startswith("deepcoder/")
    assert "function called pair" in other.messages[0].content
    live = LiveCodeBench().problem(LIVE, "")
    assert (live.id, live.tier) == ("livecodebench/abc1_a", "easy")
    assert LIVE["starter_code"].strip() in live.messages[0].content


MIXED = [
    {"type": "stdin_stdout", "input": "1", "output": "1"},
    {"type": "function_call", "fn_name": "f", "input": [1], "output": [1]},
]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"problem": " ", "tests": "[]"}, "no statement"),
        ({"problem": "Add.", "tests": "[]"}, "no tests"),
        ({"problem": "Add.", "tests": json.dumps(MIXED)}, "of several kinds"),
        ({"problem": "Add.", "tests": json.dumps([{"type": "by hand", "input": "", "output": ""}])}, "not known"),
    ],
)
def test_what_deepcoder_has_that_is_of_no_use(row: Mapping[str, Any], why: str) -> None:
    with pytest.raises(Unusable, match=why):
        DeepCoder().problem(row, "")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"private_test_cases": "[]"}, "no private tests"),
        ({"private_test_cases": "not packed"}, "cannot be unpacked"),
        ({"metadata": "{}"}, "no name for it"),
    ],
)
def test_what_livecodebench_has_that_is_of_no_use(change: Mapping[str, Any], why: str) -> None:
    with pytest.raises(Unusable, match=why):
        LiveCodeBench().problem({**LIVE, **change}, "")


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('a pickle was run')",)


def test_a_pickle_is_never_run() -> None:
    evil = base64.b64encode(zlib.compress(pickle.dumps(Evil()))).decode()
    with pytest.raises(Unusable, match="cannot be unpacked"):
        LiveCodeBench().problem({**LIVE, "private_test_cases": evil}, "")


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"since": date(2024, 6, 1)}, True),
        ({"since": date(2024, 6, 2)}, False),
        ({"until": date(2024, 5, 31)}, False),
        ({"since": date(2024, 5, 1), "until": date(2024, 6, 1)}, True),
    ],
)
def test_problems_by_date(settings: Mapping[str, date], kept: bool) -> None:
    dataset = LiveCodeBench(**settings)
    if kept:
        assert dataset.problem(LIVE, "").id
    else:
        with pytest.raises(Unusable, match="of another time"):
            dataset.problem(LIVE, "")


THEIRS = {
    "question": "What is half of one?",
    "final_answer": r"\frac{1}{2}",
    "difficulty": 5.5,
    "topic": "Mathematics",
    "r1_solution_1": "Long.",
}
TRLS = {"prompt": [{"role": "user", "content": "What is half of one?"}], "solution": r"$\frac{1}{2}$"}


@pytest.mark.parametrize(("row", "tier"), [(THEIRS, "level 5.5"), (TRLS, "")])
def test_deepmath(row: Mapping[str, Any], tier: str) -> None:
    problem = DeepMath().problem(row, "")
    assert (problem.reference, problem.tier) == (r"\frac{1}{2}", tier)
    assert problem.messages[-1].content == "What is half of one?"
    assert "Long" not in repr(problem)
    with pytest.raises(Unusable, match="empty"):
        DeepMath().problem({**THEIRS, "final_answer": ""}, "")
