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

from dojang.core.paths import cache_root
from dojang.data.deepcoder import Codeforces, DeepCoder
from dojang.data.deepmath import DeepMath
from dojang.data.livecodebench import LiveCodeBench
from dojang.data.prepare_rows import Unusable
from dojang.judge.pool import JudgePool
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


TACO = {
    "problem": "Add two numbers.",
    "solutions": [],
    "tests": json.dumps({"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}),
}
TACO_FUNCTION = {
    "problem": "Pair a number with itself.",
    "tests": json.dumps({"fn_name": "pair", "inputs": [[1], [2]], "outputs": [[[1, 1]], [[2, 2]]]}),
}
LCBV5: dict[str, Any] = {
    "problem": "Add two numbers.",
    "starter_code": "class Solution:\n    def add(self, a: int, b: int) -> int:\n        ",
    "tests": json.dumps(
        [{"input": f"{a}\n2", "output": f"{a + 2}", "testtype": "functional", "metadata": {}} for a in (1, 5)]
    ),
    "metadata": {"func_name": "add"},
}
ADD = "class Solution:\n    def add(self, a, b):\n        return a + b"
SUBTRACT = "class Solution:\n    def add(self, a, b):\n        return a - b"
AREAL: dict[str, Any] = {
    "question": "Add two numbers.",
    "input_output": json.dumps({"inputs": ["1 2\n"], "outputs": ["3\n"], "remote": False}),
    "query_id": "0",
}
AREAL_FUNCTION: dict[str, Any] = {
    "question": "Add two numbers, in a method `add` of `Solution`.",
    "input_output": json.dumps({"inputs": ["1\n2", "5\n6"], "outputs": ["3", "11"], "fn_name": "add"}),
    "question_id": "3700",
    "contest_date": "2024-06-01T00:00:00",
    "difficulty": "hard",
}


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
        (DeepCoder().problem(TACO, ""), "print(sum(map(int, input().split())))", "print(3)"),
        (DeepCoder().problem(TACO_FUNCTION, ""), "def pair(a): return [a, a]", "def pair(a): return [a]"),
        (DeepCoder().problem(LCBV5, ""), ADD, SUBTRACT),
        (LiveCodeBench().problem(AREAL, ""), "print(sum(map(int, input().split())))", "print(2)"),
        (LiveCodeBench().problem(AREAL_FUNCTION, ""), ADD, SUBTRACT),
    ],
    ids=[
        "stdin",
        "function",
        "codeforces",
        "livecodebench",
        "taco",
        "taco function",
        "lcbv5",
        "areal",
        "areal function",
    ],
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


@pytest.mark.parametrize("file", ["lcbv5/train-0.parquet", "hub/codeforces/test-0.parquet", "lcbv5/test-0.parquet"])
def test_evaluation_subsets_of_deepcoder_are_never_trained_on(file: str) -> None:
    assert DeepCoder().split(file, LCBV5) == "test"


def test_the_layout_of_areal() -> None:
    one, other = LiveCodeBench().problem(AREAL, ""), LiveCodeBench().problem(AREAL_FUNCTION, "")
    assert one.id.startswith("livecodebench/")
    assert (other.id, other.tier) == ("livecodebench/3700", "hard")
    assert "function called add" in other.messages[0].content
    with pytest.raises(Unusable, match="it has no date"):
        LiveCodeBench(since=date(2024, 6, 1)).problem(AREAL, "")
    with pytest.raises(Unusable, match="its date is out of range"):
        LiveCodeBench(since=date(2024, 6, 2)).problem(AREAL_FUNCTION, "")


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
        ({"problem": "Add.", "tests": json.dumps([{"type": "by hand", "input": "", "output": ""}])}, "unknown kind"),
        ({"problem": "Add.", "tests": {"inputs": [], "outputs": []}}, "no tests"),
        ({**LCBV5, "metadata": None}, "call a function without a name"),
        ({**TACO_FUNCTION, "tests": {"fn_name": "f", "inputs": ["one"], "outputs": ["1"]}}, "not JSON"),
        ({**TACO_FUNCTION, "tests": {"fn_name": "f", "inputs": [{"a": 1}], "outputs": [1]}}, "not a list"),
    ],
)
def test_unusable_deepcoder_rows(row: Mapping[str, Any], why: str) -> None:
    with pytest.raises(Unusable, match=why):
        DeepCoder().problem(row, "")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"private_test_cases": "[]"}, "no private tests"),
        ({"private_test_cases": "not packed"}, "cannot be unpacked"),
        ({"metadata": "{}"}, "call a function without a name"),
    ],
)
def test_unusable_livecodebench_rows(change: Mapping[str, Any], why: str) -> None:
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
        with pytest.raises(Unusable, match="its date is out of range"):
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
def test_deepmath_rows_become_problems_with_tiers(row: Mapping[str, Any], tier: str) -> None:
    problem = DeepMath().problem(row, "")
    assert (problem.reference, problem.tier) == (r"\frac{1}{2}", tier)
    assert problem.messages[-1].content == "What is half of one?"
    assert "Long" not in repr(problem)
    with pytest.raises(Unusable, match="empty"):
        DeepMath().problem({**THEIRS, "final_answer": ""}, "")
