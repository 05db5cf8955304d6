"""Published Python solutions get the verdict that running them plainly implies, as programs and as functions.

CodeContests' rows have tests but no solutions, so the solutions are those of HumanEval and MBPP. With
DOJANG_ALL_TESTS set, all of them run.
"""

import ast
import asyncio
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import plain
import pytest
from plain import Probe, Seen, differences, run_judged, run_plainly
from test_datasets import PATIENT, humaneval_submission, mbpp_submission, read_humaneval, read_mbpp, solution

from dojang.core.paths import cache_root
from dojang.judge.pool import JudgePool
from dojang.programs import Judgement, Submission, sampled
from dojang.types import Outcome

QUICK, MANY = 10, 300
SLOWEST = "mbpp/123"
"""Takes as long as all others together, three times here; tests/unit/data/test_humaneval_mbpp.py judges it."""


@pytest.fixture(scope="module")
def python() -> Iterator[str]:
    try:
        with plain.environment() as path:
            yield path
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no virtual environment can be made: {error}")


@pytest.fixture(scope="module")
def solutions(shared_data: Path) -> list[tuple[Probe, Submission]]:
    """Each solution as a program that tests itself, and as functions under test."""
    rows = [(as_program(row), humaneval_submission(row, solution(row), PATIENT)) for row in read_humaneval(shared_data)]
    for name, row in read_mbpp(shared_data).items():
        rows.append((printing(name, row), mbpp_submission(row, row["test_list"], PATIENT)))
    return rows


def as_program(row: Mapping[str, Any]) -> Probe:
    return Probe(row["task_id"], f"{solution(row)}\n{row['test']}\ncheck({row['entry_point']})\nprint('passed')\n", b"")


def printing(name: str, row: Mapping[str, Any]) -> Probe:
    """A program that prints the values its tests compare, and fails if they fail."""
    before = [row.get("test_setup_code", ""), *row.get("test_imports", ())]
    lines = [f"print({left})" for test in row["test_list"] if (left := compared(test))]
    return Probe(name, "\n".join([*before, row["code"], *lines, *row["test_list"], "print('passed')", ""]), b"")


def compared(test: str) -> str:
    statement = ast.parse(test).body[0]
    if isinstance(statement, ast.Assert) and isinstance(statement.test, ast.Compare):
        return ast.unparse(statement.test.left)
    return ""


def test_a_few_solutions_are_judged_as_they_run(solutions: list[tuple[Probe, Submission]], python: str) -> None:
    check(sampled(solutions, QUICK, seed=1), python)


@pytest.mark.slow
def test_solutions_are_judged_as_they_run(solutions: list[tuple[Probe, Submission]], python: str) -> None:
    everything = bool(os.environ.get("DOJANG_ALL_TESTS"))
    others = [each for each in solutions if each[0].name != SLOWEST]
    check(solutions if everything else sampled(others, MANY, seed=0), python)


def check(chosen: list[tuple[Probe, Submission]], python: str) -> None:
    probes = [probe for probe, _ in chosen]
    seen = run_plainly(python, probes)
    # The plain interpreter's string hashes are random, so a set prints in another order every time.
    assert differences(probes, seen, run_judged(python, probes, "auto"), {}, unordered=True) == {}
    judgements = judged([submission for _, submission in chosen], python)
    refused = {
        probe.name: judgement.detail
        for probe, run, judgement in zip(probes, seen, judgements, strict=True)
        if accepted(run) and judgement.outcome is not Outcome.ACCEPTED
    }
    assert refused == {}
    assert sum(map(accepted, seen)) >= 0.99 * len(seen)


def accepted(seen: Seen) -> bool:
    return seen.exit_code == 0 and seen.stdout.endswith("passed\n")


def judged(submissions: list[Submission], python: str) -> list[Judgement]:
    async def judge_all() -> list[Judgement]:
        async with JudgePool(cache=cache_root(), isolation="auto", python=python) as pool:
            return await asyncio.gather(*map(pool.judge, submissions))

    return asyncio.run(judge_all())
