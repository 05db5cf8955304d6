"""Preparing a dataset: nothing is lost or made twice when it is interrupted, and what is dropped is told."""

import gzip
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from dojang.commands import app
from dojang.core.errors import ConfigError, DataError
from dojang.core.section import Section
from dojang.data import prepare_rows as preparing
from dojang.data.prepare_rows import Report, Unusable, prepare, split_of
from dojang.data.prepared import PreparedConfig
from dojang.data.readers import find
from dojang.types import Message, Problem


class Numbers(Section):
    """Rows of {number}; the sevens are unusable."""

    ability: ClassVar[str] = "math"
    least: int = 0
    broken_at: ClassVar[int | None] = None

    def split(self, file: str, row: Mapping[str, Any]) -> str:
        return split_of(file)

    def problem(self, row: Mapping[str, Any], where: str) -> Problem:
        number = row["number"]
        if number == type(self).broken_at:
            raise KeyboardInterrupt
        if number % 10 == 7:
            raise Unusable("it ends with seven")
        tier = "even" if number % 2 == 0 else "odd"
        return Problem(f"numbers/{number}", "numbers", (Message("user", str(number)),), str(number), tier)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "raw"
    made.mkdir()
    rows = [{"number": number} for number in range(100)]
    pq.write_table(pa.Table.from_pylist(rows[:45]), made / "train-0.parquet", row_group_size=10)
    (made / "train-1.jsonl").write_text("\n".join(map(json.dumps, rows[45:60])) + "\n\n")
    (made / "train-2.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows[60:80])).encode()))
    (made / "test.json").write_text(json.dumps(rows[80:]))
    (made / "README.md").write_text("not data")
    return made


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "_PART", 8)


def play(folder: Path, output: Path, *, held_out: float = 0.0) -> Report:
    told: list[tuple[int, int]] = []
    report = prepare(Numbers(), find(str(folder)), output, held_out=held_out, on_progress=lambda *far: told.append(far))
    assert told == sorted(told)
    return report


def loaded(output: Path, split: str) -> list[str]:
    return [problem.id for problem in PreparedConfig(path=output).load(split)]


EXPECTED = {
    "train": [f"numbers/{number}" for number in range(80) if number % 10 != 7],
    "test": [f"numbers/{number}" for number in range(80, 100) if number % 10 != 7],
}


def test_all_rows_are_kept_or_counted(folder: Path, tmp_path: Path) -> None:
    report = play(folder, tmp_path / "out")
    assert {split: loaded(tmp_path / "out", split) for split in EXPECTED} == EXPECTED
    assert (report.read, report.kept, report.dropped) == (100, {"train": 72, "test": 18}, {"it ends with seven": 10})
    assert report.tiers == {"even": 50, "odd": 40}
    kept = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (kept["read"], kept["dropped"]) == (100, {"it ends with seven": 10})
    assert not (tmp_path / "out" / "progress.json").exists()
    assert len(PreparedConfig(path=tmp_path / "out", tiers=("odd",)).load("test")) == 8
    index = pq.read_table(tmp_path / "out" / "train").column("extra_info").to_pylist()
    assert sorted(each["index"] for each in index) == list(range(72))


@pytest.mark.parametrize("at", [0, 5, 8, 44, 45, 61, 99])
def test_interrupted_preparation_resumes(
    folder: Path, tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(Numbers, "broken_at", at)
        with pytest.raises(KeyboardInterrupt):
            play(folder, output)
    with pytest.raises(DataError, match="is not finished"):
        loaded(output, "train")
    report = play(folder, output)
    assert {split: loaded(output, split) for split in EXPECTED} == EXPECTED
    assert (report.read, sum(report.kept.values())) == (100, 90)


def test_a_share_is_held_out_the_same_one_every_time(folder: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        play(folder, tmp_path / name, held_out=0.25)
    found = loaded(tmp_path / "one", "test")
    assert found == loaded(tmp_path / "two", "test")
    assert set(found) > set(EXPECTED["test"])
    assert 8 <= len(found) - 18 <= 28
    assert sorted(found + loaded(tmp_path / "one", "train")) == sorted(EXPECTED["train"] + EXPECTED["test"])


def test_existing_output_is_not_touched(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    play(folder, output)
    with pytest.raises(DataError, match="is not empty"):
        play(folder, output)


def test_other_files_or_settings_are_another_preparation(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Numbers, "broken_at", 50)
        with pytest.raises(KeyboardInterrupt):
            play(folder, tmp_path / "out")
    with pytest.raises(DataError, match="of other files or with other settings"):
        prepare(Numbers(least=1), find(str(folder)), tmp_path / "out", on_progress=lambda *_: None)
    (folder / "train-3.jsonl").write_text('{"number": 1}')
    with pytest.raises(DataError, match="of other files or with other settings"):
        play(folder, tmp_path / "out")


def test_row_of_another_layout_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"number": 1}\n{"digits": 2, "more": 3}')
    with pytest.raises(DataError, match=r"train\.jsonl, row 1: it has no 'number', only digits, more"):
        play(tmp_path / "train.jsonl", tmp_path / "out")


@pytest.mark.parametrize("there_before", [False, True])
def test_an_error_at_the_first_row_leaves_nothing_behind(tmp_path: Path, there_before: bool) -> None:
    output = tmp_path / "out"
    if there_before:
        output.mkdir()
    (tmp_path / "train.jsonl").write_text('{"digits": 2}')
    with pytest.raises(DataError, match="it has no 'number'"):
        play(tmp_path / "train.jsonl", output)
    assert output.exists() == there_before
    (tmp_path / "train.jsonl").write_text('{"number": 12}')  # another file, by its size
    assert play(tmp_path / "train.jsonl", output).kept == {"train": 1}


def test_nothing_usable_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"number": 7}')
    with pytest.raises(DataError, match="none of 1 rows"):
        play(tmp_path / "train.jsonl", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_nothing_usable_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"number": 7}\n{"number": 17}')
    with pytest.raises(DataError, match=r"none of 2 rows could be used \(2 x it ends with seven\)"):
        play(tmp_path / "train.jsonl", tmp_path / "out")


@pytest.mark.parametrize(
    ("file", "split"),
    [
        ("train-00000-of-00039.parquet", "train"),
        ("data/test.jsonl", "test"),
        ("valid-00000.parquet", "validation"),
        ("code_contests_train.riegeli.jsonl", "train"),
        ("test/part-1.parquet", "test"),
    ],
)
def test_files_tell_their_split(file: str, split: str) -> None:
    assert split_of(file) == split


@pytest.mark.parametrize(
    "file",
    [
        "rows.parquet",
        "latest.jsonl",
        "contest.parquet",
        "retrain.jsonl",
        "values.jsonl",
        "validated.json",
        "developer/0.csv",
    ],
)
def test_file_name_without_split_is_refused(file: str) -> None:
    with pytest.raises(Unusable, match="has no split"):
        split_of(file)


def test_file_name_with_two_splits_is_refused() -> None:
    with pytest.raises(Unusable, match="two splits"):
        split_of("test_train.jsonl")
    assert split_of("train/latest.parquet") == "train"


def test_name_of_the_root_counts(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "0000.jsonl").write_text('{"number": 1}')
    assert play(tmp_path / "train", tmp_path / "out").kept == {"train": 1}


def test_duplicate_id_is_kept_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "train-9.jsonl").write_text('{"number": 1}\n{"number": 100}')
    with monkeypatch.context() as patch:
        patch.setattr(Numbers, "broken_at", 100)
        with pytest.raises(KeyboardInterrupt):
            play(folder, tmp_path / "out")
    report = play(folder, tmp_path / "out")  # what was met before is still known
    assert report.dropped["its id is a duplicate"] == 1
    assert sum(report.kept.values()) == 91


@pytest.mark.parametrize("row", ['{"number": "7"}', '{"number": {}}', '{"number": [1]}'])
def test_field_of_wrong_type_is_counted(tmp_path: Path, row: str) -> None:
    (tmp_path / "train.jsonl").write_text('{"number": 1}\n' + row)
    report = play(tmp_path / "train.jsonl", tmp_path / "out")
    assert report.dropped == {"one of its fields has the wrong type": 1}


def test_text_that_is_not_unicode_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Numbers.problem

    def odd(self: Numbers, row: Mapping[str, Any], where: str) -> Problem:
        made = real(self, row, where)
        return replace(made, messages=(Message("user", "\ud800"),)) if row["number"] == 2 else made

    monkeypatch.setattr(Numbers, "problem", odd)
    (tmp_path / "train.jsonl").write_text('{"number": 1}\n{"number": 2}')
    assert play(tmp_path / "train.jsonl", tmp_path / "out").dropped == {"its text is not Unicode": 1}


def test_large_rows_make_small_parts(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "_PART_BYTES", 10)
    play(folder, tmp_path / "out")
    assert {split: loaded(tmp_path / "out", split) for split in EXPECTED} == EXPECTED
    assert len(list((tmp_path / "out" / "train").iterdir())) > 15


def test_an_output_inside_the_input_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Numbers, "broken_at", 50)
        with pytest.raises(KeyboardInterrupt):
            play(folder, folder / "out")
    play(folder, folder / "out")
    assert loaded(folder / "out", "train") == EXPECTED["train"]


def test_damaged_state_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "progress.json").write_text("")
    (tmp_path / "train.jsonl").write_text('{"number": 1}')
    with pytest.raises(DataError, match="is damaged"):
        play(tmp_path / "train.jsonl", tmp_path / "out")


# ---- what is read ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0, 1, 9, 10, 11, 44, 45])
def test_rows_from_a_place_on(folder: Path, start: int) -> None:
    by_name = {file.name: file for file in find(str(folder))}
    assert list(by_name) == ["test.json", "train-0.parquet", "train-1.jsonl", "train-2.jsonl.gz"]
    for name, first, count in (("train-0.parquet", 0, 45), ("train-1.jsonl", 45, 15), ("test.json", 80, 20)):
        found = list(by_name[name].rows(start))
        assert found == [(at, {"number": first + at}) for at in range(start, count)]


def test_commas_and_lines_in_csv(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text('\ufeffquestion,answer\n"a, or\nb?",1\nc,2\n')
    (file,) = find(str(tmp_path))
    assert list(file.rows()) == [(0, {"question": "a, or\nb?", "answer": "1"}), (1, {"question": "c", "answer": "2"})]
    assert list(file.rows(1)) == [(1, {"question": "c", "answer": "2"})]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("train.jsonl", b'{"a": 1}\n\n{"a"', """line 3: not JSON .*: '{"a"'"""),
        ("train.jsonl", b'{"a": 1}\n[2]', "line 2: a row is an object with columns, this is list"),
        ("train.jsonl", b"\xff", "cannot be read"),
        ("train.parquet", b"not parquet", "cannot be read"),
        ("train.jsonl.gz", b"not gzip", "cannot be read"),
    ],
)
def test_files_that_are_broken(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    (file,) = find(str(tmp_path / name))
    with pytest.raises(DataError, match=words):
        list(file.rows())


@pytest.mark.parametrize("where", ["./nowhere", "/no/where.jsonl", "nowhere", "odd://place"])
def test_missing_places_are_refused(where: str) -> None:
    with pytest.raises(DataError, match=where.removeprefix(".").split("/")[-1]):
        find(where)


def test_a_place_without_data(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(DataError, match="has no files to read"):
        find(str(tmp_path))


# ---- as it is typed --------------------------------------------------------------------------------------------


def typed(*arguments: str) -> str:
    return CliRunner().invoke(app, ["data", "prepare", *arguments], catch_exceptions=False).output


def test_dataset_is_prepared_and_reported(tmp_path: Path) -> None:
    row = {"task_id": 601, "text": "Add.", "code": "def add(a, b): return a + b"}
    rows = [
        {**row, "test_list": ["assert add(1, 1) == 2", "assert add(1, 2) == 3"]},
        {**row, "task_id": 3, "test_list": []},
    ]
    (tmp_path / "mbpp.jsonl").write_text("\n".join(map(json.dumps, rows)))
    told = typed("mbpp", "--input", str(tmp_path / "mbpp.jsonl"), "--output", str(tmp_path / "out"))
    assert "2  rows read" in told
    assert "dropped: it is reserved for prompts" in told
    assert "data.name=prepared" in told


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (["mbp"], ConfigError, "unknown dataset 'mbp'; did you mean mbpp"),
        (["mbpp", "tiers"], ConfigError, "must have the form key=value"),
        (["code-contests", "tiers=[easy"], ConfigError, "settings of code-contests: tiers: "),
        (["code-contests", "tiers=[simple]"], ConfigError, r"settings of code-contests: tiers.0: .*Known: tiers"),
        (["livecodebench", "since=2024-13-01"], ConfigError, "settings of livecodebench: since: "),
        (["humaneval", "shots=1"], ConfigError, "Known: none"),
        (["mbpp"], DataError, "data/none.jsonl does not exist"),
    ],
)
def test_invalid_arguments_are_refused(arguments: list[str], kind: type[Exception], words: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=words):
        typed(arguments[0], "--input", "data/none.jsonl", "--output", str(tmp_path / "out"), *arguments[1:])


def test_an_output_that_is_a_file(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(DataError, match="is not empty"):
        play(folder, tmp_path / "out")
