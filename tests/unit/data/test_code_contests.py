"""CodeContests in the layouts it is published in; the real problems of one of them."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from typer.testing import CliRunner

from dojang.commands import app
from dojang.core.errors import DataError
from dojang.data.code_contests import CodeContests
from dojang.data.prepare_rows import Unusable
from dojang.data.prepared import PreparedConfig
from dojang.data.ratings import TIERS
from dojang.tasks.code import CodeReference

HUB: dict[str, Any] = {
    "name": "1_A. Theatre Square",
    "description": "A square has the size n times m. How many flagstones of the size a times a cover it? <image>",
    "public_tests": {"input": ["6 6 4\n"], "output": ["4\n"]},
    "private_tests": {"input": ["1 1 1\n", "2 1 1\n"], "output": ["1\n", "2\n"]},
    "generated_tests": {"input": ["3 1 1\n"], "output": ["3\n"]},
    "source": 2,
    "difficulty": 7,
    "solutions": {"language": [2], "solution": ["int main() {}"]},
    "incorrect_solutions": {"language": [], "solution": []},
    "cf_contest_id": 1,
    "cf_index": "A",
    "cf_points": 0.0,
    "cf_rating": 1000,
    "cf_tags": ["math"],
    "is_description_translated": False,
    "untranslated_description": "",
    "time_limit": {"seconds": 1, "nanos": 500_000_000},
    "memory_limit_bytes": 64_000_000,
    "input_file": "",
    "output_file": "",
}
PROTOBUF = {
    **HUB,
    **{
        kind: [
            {"input": given, "output": wanted}
            for given, wanted in zip(HUB[kind]["input"], HUB[kind]["output"], strict=True)
        ]
        for kind in ("public_tests", "private_tests", "generated_tests")
    },
    "solutions": [{"language": 2, "solution": "int main() {}"}],
}


@pytest.mark.parametrize("row", [HUB, PROTOBUF], ids=["hub", "protobuf"])
def test_a_row_becomes_a_problem_without_its_solutions(row: dict[str, Any]) -> None:
    problem = CodeContests().problem(row, "train/0")
    assert (problem.id, problem.source, problem.tier) == ("code_contests/1_A. Theatre Square", "code_contests", "easy")
    assert problem.messages[0].content.endswith(HUB["description"])
    assert "main" not in repr(problem)
    reference = TypeAdapter(CodeReference).validate_python(problem.reference)
    assert [test.input for test in reference.private] == ["1 1 1\n", "2 1 1\n"]
    assert [test.output for test in reference.public] == ["4\n"]
    assert (reference.limits.cpu_s, reference.limits.memory_mb, reference.language) == (1.5, 64, "cpp17")


def test_generated_tests_are_private_if_asked_for() -> None:
    reference = CodeContests(generated=True).problem(HUB, "").reference
    assert isinstance(reference, dict)
    assert [test["input"] for test in reference["private"]] == ["1 1 1\n", "2 1 1\n", "3 1 1\n"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"cf_rating": 700}, "its rating is below 800 or missing"),
        ({"cf_rating": 0}, "its rating is below 800 or missing"),
        ({"cf_rating": None}, "its rating is below 800 or missing"),
        ({"cf_rating": 3600}, "its rating is between tiers, or above all"),
        ({"private_tests": {"input": [], "output": []}}, "it has no private tests"),
        ({"description": " "}, "it has no statement"),
        ({"description": None}, "it has no statement"),
        ({"description": "<image>\n\n<image>"}, "its statement has only images"),
        ({"time_limit": None}, "its limits are missing or invalid"),
        ({"time_limit": {"seconds": 0, "nanos": 0}}, "its limits are missing or invalid"),
        ({"memory_limit_bytes": 0}, "its limits are missing or invalid"),
        ({"input_file": "input.txt"}, "it reads or writes files"),
    ],
)
def test_unusable_rows_are_dropped(change: dict[str, Any], why: str) -> None:
    with pytest.raises(Unusable, match=why):
        CodeContests().problem({**HUB, **change}, "")


@pytest.mark.parametrize(
    ("rating", "tier"),
    [(800, "easy"), (1000, "easy"), (1100, "hard"), (2200, "hard"), (2300, "expert"), (3500, "expert")],
)
def test_ratings_become_tiers_that_can_be_selected(rating: int, tier: str) -> None:
    assert CodeContests().problem({**HUB, "cf_rating": rating}, "").tier == tier
    others = tuple(each for each in TIERS if each != tier)
    with pytest.raises(Unusable, match=f"its tier {tier} is not selected"):
        CodeContests(tiers=others).problem({**HUB, "cf_rating": rating}, "")


def test_codefu_rows_are_read(shared_data: Path) -> None:
    config = PreparedConfig(path=shared_data / "code_contests_easy")
    problems = [problem for split in ("train", "test") for problem in config.load(split)]
    assert len({problem.id for problem in problems}) == len(problems) == 840
    adapter = TypeAdapter(CodeReference)
    references = [adapter.validate_python(problem.reference) for problem in problems]
    assert sum(len(each.private) for each in references) == 23_174 + 931
    assert sum(len(each.private) + len(each.public) for each in references) == 25_878
    assert not any("<|im_" in message.content for problem in problems for message in problem.messages)
    assert all(len(problem.messages) == 1 for problem in problems)


def test_the_rows_of_codefu_have_tiers(shared_data: Path) -> None:
    easy = PreparedConfig(path=shared_data / "code_contests_easy", tiers=("easy",))
    assert (len(easy.load("train")), len(easy.load("test"))) == (808, 32)
    hard = PreparedConfig(path=shared_data / "code_contests_easy", tiers=("hard",))
    with pytest.raises(DataError, match="holds no problems of the tiers hard; it has 808 of easy"):
        hard.load("train")


def test_prepared_rows_are_refused(shared_data: Path, tmp_path: Path) -> None:
    rows, output = shared_data / "code_contests_easy", tmp_path / "new" / "out"
    arguments = ["data", "prepare", "code-contests", "--input", str(rows), "--output", str(output)]
    for _ in range(2):
        with pytest.raises(DataError, match=f"needs no preparation.*data.name=prepared data.path={rows.resolve()}"):
            CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert not output.exists()
