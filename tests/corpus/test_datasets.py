"""The judge on common training datasets: correct programs are accepted, wrong ones rejected, and nothing fails.

Of a CodeContests problem, the smallest three tests and the largest run, and of MBPP's solutions a third; with
DOJANG_ALL_TESTS set, all run. The tables below list every solution with another outcome, and why; they are compared
exactly.
"""

import ast
import asyncio
import gzip
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from contests import Contest, cpp_by_heart, python_by_heart, read
from mutations import altered

from dojang.core.paths import cache_root
from dojang.judge.pool import JudgePool
from dojang.programs import CallTest, IoTest, Judgement, Limits, Submission, TestSuite, sampled
from dojang.tasks.mutation import mutants, parsed
from dojang.types import Outcome

ALL = bool(os.environ.get("DOJANG_ALL_TESTS"))
REJECTED = {Outcome.WRONG, Outcome.RUNTIME_ERROR, Outcome.TIME_LIMIT}
PATIENT = Limits(cpu_s=90)
"""Limits of correct solutions. MBPP 123 takes 5 to 25 seconds, depending on the machine."""
BRISK = Limits(cpu_s=2)
"""Limits of wrong solutions, some of which never end."""

SURVIVORS = {
    "HumanEval/116": "every number loses its leading binary one, which changes the order of neither positive nor "
    "negative numbers; no test mixes them",
    "HumanEval/162": "Python takes the encoding 'ascii?' for 'ascii'",
}
"""HumanEval solutions that pass the tests despite their first mutation."""

REFUSED: dict[str, str] = {}
"""MBPP solutions that fail their own tests."""

Row = Mapping[str, Any]


def judged(submissions: Iterable[Submission]) -> list[Judgement]:
    """Judge all submissions; none may be a judge error."""

    async def judge_all() -> list[Judgement]:
        async with JudgePool(cache=cache_root(), isolation="auto") as pool:
            return await asyncio.gather(*map(pool.judge, submissions))

    judgements = asyncio.run(judge_all())
    broken = [judgement.detail for judgement in judgements if judgement.outcome is Outcome.JUDGE_ERROR]
    assert broken == [], f"{len(broken)} judge errors"
    return judgements


# ---- CodeContests --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def contests(shared_data: Path) -> list[Contest]:
    return read(present(shared_data / "code_contests_easy"))


def present(path: Path) -> Path:
    if not path.exists():
        pytest.skip(f"no {path.name} in {path.parent}")
    return path


def test_contests_are_read_whole(contests: list[Contest]) -> None:
    assert len({contest.name for contest in contests}) == len(contests) == 840
    tests = [(contest, test) for contest in contests for test in contest.tests]
    assert len(tests) == 25_878
    # The same input with another output: the problem has several correct answers, and comparing text does not work.
    assert sum(not contest.agrees(test) for contest, test in tests) == 10


def test_limits_of_contests_are_what_codeforces_says(contests: list[Contest]) -> None:
    seconds = Counter(contest.limits.cpu_s for contest in contests)
    assert seconds == {0.5: 8, 1.0: 516, 1.5: 3, 2.0: 303, 2.5: 1, 3.0: 6, 4.0: 3}
    megabytes = Counter(contest.limits.memory_mb for contest in contests)
    assert megabytes == {64: 14, 128: 1, 255: 1, 256: 798, 265: 1, 512: 24, 1024: 1}


@pytest.mark.slow
def test_python_that_knows_the_answers(contests: list[Contest]) -> None:
    suites = [spoiled(contest, contest.tests if ALL else contest.few) for contest in contests]
    assert sum(len(suite.tests) for suite in suites) == (25_878 if ALL else 3_224) + 840
    check_by_heart(contests, suites, "python3", python_by_heart)


@pytest.mark.slow
def test_cpp_that_knows_the_answers(contests: list[Contest]) -> None:
    chosen = sampled(contests, 8, seed=0)
    check_by_heart(chosen, [spoiled(contest, contest.few) for contest in chosen], "cpp17", cpp_by_heart)


def spoiled(contest: Contest, tests: Sequence[IoTest]) -> TestSuite:
    """The tests, and one that expects a word too many."""
    return TestSuite((*tests, IoTest(tests[0].input, contest.answers[tests[0].input] + " more")), contest.limits)


def check_by_heart(
    contests: Sequence[Contest],
    suites: Sequence[TestSuite],
    language: str,
    program: Callable[[Contest, Iterable[IoTest]], str],
) -> None:
    sources = map(program, contests, (io_tests(suite) for suite in suites))
    judgements = judged(Submission(language, source, suite) for source, suite in zip(sources, suites, strict=True))
    for contest, suite, judgement in zip(contests, suites, judgements, strict=True):
        expected = [Outcome.ACCEPTED if contest.agrees(test) else Outcome.WRONG for test in io_tests(suite)]
        assert expected[-1] is Outcome.WRONG
        assert [result.outcome for result in judgement.results] == expected, (contest.name, judgement.detail)


def io_tests(suite: TestSuite) -> list[IoTest]:
    return [test for test in suite.tests if isinstance(test, IoTest)]


# ---- HumanEval -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def humaneval(shared_data: Path) -> list[Row]:
    return read_humaneval(shared_data)


def read_humaneval(shared_data: Path) -> list[Row]:
    packed = present(shared_data / "humaneval" / "HumanEval.jsonl.gz").read_bytes()
    return [json.loads(line) for line in gzip.decompress(packed).splitlines()]


@pytest.mark.slow
def test_solutions_of_humaneval_are_accepted(humaneval: list[Row]) -> None:
    assert len(humaneval) == 164
    judgements = judged(humaneval_submission(row, solution(row), PATIENT) for row in humaneval)
    assert complaints([row["task_id"] for row in humaneval], judgements) == {}


@pytest.mark.slow
def test_mutated_solutions_of_humaneval_are_rejected(humaneval: list[Row]) -> None:
    mutated = {row["task_id"]: list(islice(mutants(solution(row)), 2)) for row in humaneval}
    first = judged(humaneval_submission(row, mutated[row["task_id"]][0], BRISK) for row in humaneval)
    survivors = [row for row, judgement in zip(humaneval, first, strict=True) if judgement.outcome not in REJECTED]
    assert {row["task_id"] for row in survivors} == SURVIVORS.keys()
    second = judged(humaneval_submission(row, mutated[row["task_id"]][1], BRISK) for row in survivors)
    assert all(judgement.outcome in REJECTED for judgement in second)


def solution(row: Row) -> str:
    return str(row["prompt"] + row["canonical_solution"])


def humaneval_submission(row: Row, source: str, limits: Limits) -> Submission:
    test = CallTest(row["test"] + "\ncheck(candidate)", row["entry_point"])
    return Submission("python3", source, TestSuite((test,), limits))


def complaints(names: Iterable[str], judgements: Iterable[Judgement]) -> dict[str, str]:
    """Reasons of those that were not accepted."""
    told = zip(names, judgements, strict=True)
    return {name: judgement.detail for name, judgement in told if judgement.outcome is not Outcome.ACCEPTED}


# ---- MBPP ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mbpp(shared_data: Path) -> dict[str, Row]:
    return read_mbpp(shared_data)


def read_mbpp(shared_data: Path) -> dict[str, Row]:
    """Rows by name. Of the sanitized ones, those that differ in more than line ends."""
    lines = present(shared_data / "mbpp" / "mbpp.jsonl").read_text().splitlines()
    rows = {f"mbpp/{row['task_id']}": row for row in map(json.loads, lines)}
    assert len(rows) == 974
    sanitized = json.loads(present(shared_data / "mbpp" / "sanitized-mbpp.json").read_text())
    assert len(sanitized) == 427
    known = {essence(row) for row in rows.values()}
    return rows | {f"sanitized/{row['task_id']}": row for row in sanitized if essence(row) not in known}


@pytest.mark.slow
def test_solutions_of_mbpp_are_accepted(mbpp: dict[str, Row]) -> None:
    """A third of them; tests/unit/data/test_humaneval_mbpp.py judges another third, and the slowest."""
    chosen = mbpp if ALL else dict(list(mbpp.items())[1::3])
    judgements = judged(mbpp_submission(row, assertions(row), PATIENT) for row in chosen.values())
    assert sum(judgement.total for judgement in judgements) == (3_440 if ALL else 1_147)
    refused = complaints(chosen, judgements)
    assert refused.keys() == REFUSED.keys() & chosen.keys(), refused


@pytest.mark.slow
def test_solutions_of_mbpp_do_not_pass_other_tests(mbpp: dict[str, Row]) -> None:
    able = [(name, change) for name in mbpp if (change := altered(assertions(mbpp[name])[0]))]
    chosen = sampled(able, 150, seed=0)
    assert len(chosen) == 150
    judgements = judged(mbpp_submission(mbpp[name], [change], PATIENT) for name, change in chosen)
    outcomes = {name: judgement.outcome for (name, _), judgement in zip(chosen, judgements, strict=True)}
    assert {name: outcome for name, outcome in outcomes.items() if outcome is not Outcome.WRONG} == {}


def essence(row: Row) -> tuple[str, ...]:
    return "\n".join(row["code"].splitlines()), *assertions(row)


def assertions(row: Row) -> list[str]:
    return [*row["test_list"], *row.get("challenge_test_list", ())]


def mbpp_submission(row: Row, tests: Sequence[str], limits: Limits) -> Submission:
    before = [row.get("test_setup_code", ""), *row.get("test_imports", ())]
    calls = tuple(CallTest("\n".join([*before, test]), called(row["code"], test)) for test in tests)
    return Submission("python3", row["code"], TestSuite(calls, limits))


def called(code: str, test: str) -> str:
    """Function under test. It is named because one solution defines `sum`, which otherwise means the builtin."""
    made = {node.name for node in parsed(code).body if isinstance(node, ast.FunctionDef)}
    used = [node.id for node in ast.walk(parsed(test)) if isinstance(node, ast.Name) and node.id in made]
    return used[0] if used else ""
