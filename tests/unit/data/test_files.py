"""Problems from the user's own files."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from dojang.core.errors import DataError
from dojang.data.files import FilesConfig
from dojang.types import Message

ROWS = [{"question": f"{a} + {a}?", "answer": str(2 * a), "hard": a > 50} for a in range(100)]


@pytest.fixture(params=["jsonl", "json", "csv", "parquet"])
def file(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / f"rows.{request.param}"
    if request.param == "jsonl":
        path.write_text("\n".join(map(json.dumps, ROWS)))
    elif request.param == "json":
        path.write_text(json.dumps(ROWS))
    elif request.param == "csv":
        path.write_text(
            "question,answer,hard\n" + "\n".join(f"{a['question']},{a['answer']},{a['hard']}" for a in ROWS)
        )
    else:
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    return path


def test_all_kinds_of_files_are_read_alike(file: Path) -> None:
    config = FilesConfig(train=file, system="Be brief.", prompt="Q: {question}", tier="hard", source="sums")
    train, test = config.load("train"), config.load("test")
    assert len(train) + len(test) == 100
    assert 2 <= len(test) <= 20
    assert not {each.id for each in train} & {each.id for each in test}
    assert config.load("test") == test
    first = min((*train, *test), key=lambda each: int(str(each.reference)))
    assert first.messages == (Message("system", "Be brief."), Message("user", "Q: 0 + 0?"))
    assert (first.id, first.source, first.reference, first.tier) == (f"sums/{file.name}/0", "sums", "0", "False")


def test_a_test_file_of_its_own(file: Path, tmp_path: Path) -> None:
    (tmp_path / "held.jsonl").write_text('{"question": "1 + 1?", "answer": 2, "name": "one"}')
    config = FilesConfig(train=file, test=tmp_path / "held.jsonl")
    assert len(config.load("train")) == 100
    assert [each.reference for each in config.load("test")] == [2]
    (only,) = FilesConfig(train=file, test=tmp_path / "held.jsonl", id="name").load("test")
    assert only.id == "one"


def test_tests_of_programs_may_be_written_as_json(tmp_path: Path) -> None:
    reference = {"private": [{"input": "1", "output": "2"}]}
    (tmp_path / "a.csv").write_text('question,answer\nDouble it.,"' + json.dumps(reference).replace('"', '""') + '"\n')
    (problem,) = FilesConfig(train=tmp_path / "a.csv", test=tmp_path / "a.csv").load("test")
    assert problem.reference == reference


def test_a_set_is_not_an_object(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"question": "Which?", "answer": "{1, 2}"}))
    (problem,) = FilesConfig(train=tmp_path / "a.jsonl", test=tmp_path / "a.jsonl").load("test")
    assert problem.reference == "{1, 2}"


@pytest.mark.parametrize("settings", [{"prompt": "{text}"}, {"answer": "result"}, {"id": "name"}, {"tier": "level"}])
def test_a_column_that_is_not_there(file: Path, settings: dict[str, Any]) -> None:
    (column,) = (value.strip("{}") for value in settings.values())
    with pytest.raises(DataError, match=rf"{file.name}/0: there is no column '{column}', but question, answer, hard"):
        FilesConfig(train=file, **settings).load("train")


@pytest.mark.parametrize("prompt", ["no columns", "{}", "{question", "{question.__class__}", "{0}"])
def test_templates_that_are_none(prompt: str) -> None:
    with pytest.raises(ValidationError, match="braces"):
        FilesConfig(train=Path("x"), prompt=prompt)


def test_half_of_a_surrogate_pair_is_told_with_its_row(tmp_path: Path) -> None:
    rows = [{"question": "\ud800 + 1?" if n == 7 else "1 + 1?", "answer": "2"} for n in range(30)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = FilesConfig(train=tmp_path / "rows.jsonl", test=tmp_path / "rows.jsonl")
    with pytest.raises(DataError, match=r"files/rows\.jsonl/7: its prompt is not valid Unicode"):
        config.load("test")


def test_so_few_rows_that_none_is_held_out_say_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROWS[0]))
    found = FilesConfig(train=tmp_path / "rows.jsonl", held_out=0.001)
    assert len(found.load("train")) == 1
    with pytest.raises(
        DataError, match=r"data.held_out=0.001 of the 1 rows of .* leaves none for the test split.*data.test"
    ):
        found.load("test")


def test_files_that_are_not_there_or_empty(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is nothing at"):
        FilesConfig(train=tmp_path / "none.jsonl").load("train")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(DataError, match="holds no rows"):
        FilesConfig(train=tmp_path / "empty.jsonl").load("train")
