"""`data.limit` and `data.limit_seed`: which training problems of a dataset are used."""

import json
from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from dojang.commands import app
from dojang.config.run_config import Data
from dojang.data.arithmetic import ArithmeticConfig
from dojang.data.files import FilesConfig
from dojang.data.prepared import PreparedConfig
from dojang.data.section import DataSection

SHUFFLED = [15, 9, 14, 7, 12, 10, 6, 19]
"""datasets.Dataset.from_dict({"i": range(20)}).shuffle(seed=42).select(range(8))["i"], of datasets 5.2.0."""


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    for name in ("train", "test"):
        lines = [json.dumps({"question": f"{name} {number}", "answer": str(number)}) for number in range(20)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    return tmp_path


def answers(rows: Path, split: str = "train", **limits: int) -> list[int]:
    config = FilesConfig(train=rows / "train.jsonl", test=rows / "test.jsonl", **limits)  # type: ignore[arg-type]
    return [int(str(problem.reference)) for problem in config.load(split)]


def test_a_seed_takes_the_rows_that_datasets_takes(rows: Path) -> None:
    assert answers(rows, limit=8, limit_seed=42) == SHUFFLED
    assert answers(rows, limit=3, limit_seed=42) == SHUFFLED[:3]


def test_without_a_seed_the_first_rows_are_taken(rows: Path) -> None:
    assert answers(rows, limit=8) == list(range(8))


def test_a_limit_above_the_number_of_rows_takes_all(rows: Path) -> None:
    assert answers(rows, limit=100) == list(range(20))
    assert sorted(answers(rows, limit=100, limit_seed=42)) == list(range(20))


def test_held_out_problems_are_not_limited(rows: Path) -> None:
    assert answers(rows, "test", limit=8, limit_seed=42) == list(range(20))


def test_every_dataset_can_be_limited() -> None:
    union, _ = get_args(Data)
    assert all(issubclass(each, DataSection) for each in get_args(union))
    assert len(ArithmeticConfig(limit=5, limit_seed=1).load("train")) == 5


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"limit": 0}, "greater than or equal to 1"),
        ({"limit": 5, "limit_seed": -1}, "greater than or equal to 0"),
        ({"limit_seed": 42}, "set data.limit as well"),
    ],
)
def test_impossible_limits_are_refused(settings: dict[str, int], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        ArithmeticConfig.model_validate(settings)


def prepared(rows: list[dict[str, str]], folder: Path, *options: str) -> PreparedConfig:
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "test.jsonl").write_text(json.dumps({"question": "Held out?", "final_answer": "1"}))
    output = folder / f"out{len(options)}"
    command = ["data", "prepare", "deepmath", "--input", str(folder), "--output", str(output), *options]
    assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
    return PreparedConfig(path=output, limit=8, limit_seed=42)


@pytest.mark.parametrize("options", [(), ("--held-out", "0.3")])
def test_rows_that_the_preparation_dropped_do_not_change_the_choice(tmp_path: Path, options: tuple[str, ...]) -> None:
    rows = [{"question": f"What is {n} plus {n}?", "final_answer": str(2 * n)} for n in range(20)]
    rows[14]["final_answer"] = ""  # dropped; one of those that are chosen
    rows[0] = rows[1]  # dropped, too: its id is a duplicate
    config = prepared(rows, tmp_path, *options)
    held_out = {str(each.reference) for each in config.load("test")}
    expected = [str(2 * n) for n in SHUFFLED if n != 14 and str(2 * n) not in held_out]
    assert [each.reference for each in config.load("train")] == expected


def test_rows_without_positions_are_drawn_from_the_file(tmp_path: Path) -> None:
    rows = [
        {"data_source": "a", "prompt": [{"role": "user", "content": "?"}], "reward_model": {"ground_truth": str(n)}}
        for n in range(20)
    ]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = PreparedConfig(path=tmp_path, limit=8, limit_seed=42)
    assert [int(str(each.reference)) for each in config.load("train")] == SHUFFLED
