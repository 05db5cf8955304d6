"""HumanEval and MBPP: the real rows, and what the judge says to their authors' solutions."""

import asyncio
import gzip
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from dojang.core.paths import cache_root
from dojang.data.humaneval import HumanEval
from dojang.data.mbpp import Mbpp
from dojang.data.prepare_rows import Unusable, prepare
from dojang.data.prepared import PreparedConfig
from dojang.data.readers import find
from dojang.judge.pool import JudgePool
from dojang.programs import Judgement, Submission
from dojang.tasks.code import CodeConfig
from dojang.types import Outcome, Problem


def graded(problems: Sequence[Problem], solutions: Mapping[str, str]) -> Counter[Outcome]:
    async def grade() -> list[Outcome]:
        async with JudgePool(cache=cache_root()) as judge:
            task = CodeConfig(tests="all").make({"test": problems}, judge)
            answers = [task.grade(each, f"Here:\n```python\n{solutions[each.id]}\n```") for each in problems]
            return [verdict.outcome for verdict in await asyncio.gather(*answers)]

    return Counter(asyncio.run(grade()))


def test_humaneval_prepared_and_its_solutions_accepted(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "humaneval" / "HumanEval.jsonl.gz"
    prepare(HumanEval(), find(str(source)), tmp_path / "out", on_progress=lambda *_: None)
    problems = PreparedConfig(path=tmp_path / "out").load("test")
    rows = [json.loads(line) for line in gzip.decompress(source.read_bytes()).splitlines()]
    assert [problem.id for problem in problems] == [row["task_id"] for row in rows]
    assert len(problems) == 164
    assert not any(
        row["canonical_solution"].strip() in repr(problem) for row, problem in zip(rows, problems, strict=True)
    )
    chosen = [problem for problem in problems if problem.id in {"HumanEval/0", "HumanEval/32", "HumanEval/38"}]
    # The function alone: what stands before it in the question need not be repeated.
    solutions = {row["task_id"]: alone(row) for row in rows}
    assert graded(chosen, solutions) == {Outcome.ACCEPTED: 3}
    assert graded(chosen, dict.fromkeys(solutions, "def nothing(): pass")) == {Outcome.RUNTIME_ERROR: 3}


def alone(row: Mapping[str, Any]) -> str:
    whole = str(row["prompt"] + row["canonical_solution"])
    return whole[whole.index(f"def {row['entry_point']}") :]


def test_mbpp_prepared_and_its_solutions_accepted(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "mbpp" / "mbpp.jsonl"
    report = prepare(Mbpp(), find(str(source)), tmp_path / "out", keep_overlap=True, on_progress=lambda *_: None)
    assert report.kept == {"train": 374, "validation": 90, "test": 500}
    assert report.dropped == {"it is reserved for prompts": 10}
    assert len(report.overlap or ()) == 23
    problems = PreparedConfig(path=tmp_path / "out").load("train")
    solutions = {f"mbpp/{row['task_id']}": row["code"] for row in map(json.loads, source.read_text().splitlines())}
    assert graded(problems[:40], solutions) == {Outcome.ACCEPTED: 40}


@pytest.mark.slow
@pytest.mark.parametrize(("dataset", "limit"), [("humaneval", 3.0), ("mbpp", 3.0)])
def test_solutions_take_a_fraction_of_the_cpu_limit(shared_data: Path, dataset: str, limit: float) -> None:
    """On a busy machine too: half of the limit at most. Of MBPP a third, and the slowest; with DOJANG_ALL_TESTS all.
    tests/corpus/test_datasets.py judges another third."""
    kind = {"humaneval": HumanEval, "mbpp": Mbpp}[dataset]()
    submissions = dict[Submission, str]()  # some rows are in two files
    for path in sorted((shared_data / dataset).iterdir()):
        for row in rows_of(path):
            problem = kind.problem(row, "")
            judge_input = CodeConfig(tests="all", max_tests=None).judge_input(problem)
            (solution,) = kind.known(row).good
            submissions.setdefault(Submission(judge_input.language, solution, judge_input.test_suite), problem.id)

    if dataset == "mbpp" and not os.environ.get("DOJANG_ALL_TESTS"):
        kept = {name for at, name in enumerate(submissions.values()) if at % 3 == 0 or name == "mbpp/123"}
        submissions = {submission: name for submission, name in submissions.items() if name in kept}
        assert len(submissions) > 300

    async def judge_all() -> list[Judgement]:
        async with JudgePool(cache=cache_root()) as judge:
            return await asyncio.gather(*map(judge.judge, submissions))

    others = dict[str, float]()
    for (submission, name), judgement in zip(submissions.items(), asyncio.run(judge_all()), strict=True):
        allowed = submission.test_suite.limits.cpu_s
        assert judgement.outcome is Outcome.ACCEPTED, (name, judgement.detail)
        assert max(result.cpu_s for result in judgement.results) < allowed / 2, name
        if allowed != limit:
            others[name] = allowed
    assert others == ({"mbpp/123": 60.0} if dataset == "mbpp" else {})


def rows_of(path: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    return json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()]


def test_training_problems_that_are_in_the_test_split_of_mbpp_are_dropped(shared_data: Path, tmp_path: Path) -> None:
    report = prepare(
        Mbpp(), find(str(shared_data / "mbpp" / "mbpp.jsonl")), tmp_path / "out", on_progress=lambda *_: None
    )
    assert report.kept == {"train": 351, "validation": 90, "test": 500}
    assert report.dropped == {
        "it is reserved for prompts": 10,
        "it overlaps with a problem of the test split": 15,
        "it overlaps with a problem of the validation split": 8,
    }
    left = {problem.id for problem in PreparedConfig(path=tmp_path / "out").load("train")}
    assert len(left) == 351
    assert not left & {each["id"] for each in report.overlap or ()}


def test_the_sanitised_rows_are_read_too(shared_data: Path) -> None:
    rows = json.loads((shared_data / "mbpp" / "sanitized-mbpp.json").read_text())
    splits = Counter[str]()
    for row in rows:
        try:
            splits[Mbpp().split("", row)] += 1
        except Unusable:
            splits["prompts"] += 1
            continue
        Mbpp().problem(row, "")
    assert splits == {"train": 120, "test": 257, "validation": 43, "prompts": 7}


def test_the_first_assertion_is_shown_and_the_others_are_not() -> None:
    row = {
        "task_id": 700,
        "text": "Write a function to add numbers.",
        "code": "def sum(a, b):\n    return a + b",
        "test_list": ["assert sum(1, 2) == 3", "assert sum(2, 2) == 4"],
        "test_setup_code": "import math",
        "challenge_test_list": ["assert sum(0, 0) == 0"],
    }
    problem = Mbpp().problem(row, "")
    assert isinstance(problem.reference, dict)
    assert problem.reference["public"] == [{"code": "import math\nassert sum(1, 2) == 3", "function": "sum"}]
    assert len(problem.reference["private"]) == 2
    assert "sum(1, 2)" in problem.messages[0].content
    assert "sum(2, 2)" not in problem.messages[0].content
    with pytest.raises(Unusable, match="a single test"):
        Mbpp().problem({**row, "test_list": row["test_list"][:1], "challenge_test_list": []}, "")
