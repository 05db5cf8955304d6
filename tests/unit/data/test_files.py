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
from dojang.types import Message, Problem

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


def test_separate_test_file(file: Path, tmp_path: Path) -> None:
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
def test_missing_column_is_refused(file: Path, settings: dict[str, Any]) -> None:
    (column,) = (value.strip("{}") for value in settings.values())
    line = {".jsonl": "line 1", ".csv": "line 2"}.get(file.suffix, "row 0")
    with pytest.raises(
        DataError, match=rf"{file.name}, {line}.*: the row has no column '{column}', only question, answer, hard"
    ):
        FilesConfig(train=file, **settings).load("train")


CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]


def load(tmp_path: Path, row: object, **settings: Any) -> Problem:
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    (problem,) = FilesConfig(train=tmp_path / "rows.jsonl", test=tmp_path / "rows.jsonl", **settings).load("train")
    return problem


def test_messages_are_the_prompt_as_given(tmp_path: Path) -> None:
    for settings in ({}, {"prompt": "{prompt}"}, {"system": "Be long."}):
        problem = load(tmp_path, {"prompt": CHAT, "answer": "2"}, **settings)
        assert problem.messages == (Message("system", "Be brief."), Message("user", "1 + 1?"))
    problem = load(tmp_path, {"chat": CHAT[1:], "answer": "2"}, system="Be long.", prompt="{chat}")
    assert problem.messages == (Message("system", "Be long."), Message("user", "1 + 1?"))


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([{"role": "user"}], "a message needs a role .* and text as content"),
        ([*CHAT, {"role": "assistant", "content": "2"}], "ends with a message of the assistant"),
        ([], "has no messages"),
        (None, "neither text nor a list of messages"),
    ],
)
def test_prompts_that_are_no_messages_are_refused_with_their_line(tmp_path: Path, prompt: object, words: str) -> None:
    with pytest.raises(DataError, match=f"rows.jsonl, line 1: .*{words}"):
        load(tmp_path, {"prompt": prompt, "answer": "2"})


def test_text_prompts_and_rows_without_an_answer(tmp_path: Path) -> None:
    problem = load(tmp_path, {"prompt": "Say {hello}.", "style": "short"}, answer="")
    assert problem.messages == (Message("user", "Say {hello}."),)
    assert (problem.reference, problem.columns["style"]) == (None, "short")


def test_rows_of_verl(tmp_path: Path) -> None:
    row = {
        "data_source": "openai/gsm8k",
        "prompt": CHAT[1:],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"split": "train", "index": 7},
    }
    problem = load(tmp_path, row, system="Be brief.")
    assert problem.messages == (Message("system", "Be brief."), Message("user", "1 + 1?"))
    assert (problem.source, problem.reference) == ("openai/gsm8k", "2")
    assert problem.columns["extra_info"] == row["extra_info"]


def save_to_disk(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Writes the files of `datasets.Dataset.save_to_disk`."""
    folder.mkdir(parents=True)
    table = pa.Table.from_pylist(rows)
    for name in ("data-00000-of-00001.arrow", "cache-0f1e.arrow"):  # the second is left by Dataset.map
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=30)
    (folder / "state.json").write_text('{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}')
    (folder / "dataset_info.json").write_text('{"features": {}}')


def test_save_to_disk_of_a_dataset(tmp_path: Path) -> None:
    save_to_disk(tmp_path / "saved", ROWS)
    config = FilesConfig(train=tmp_path / "saved")
    train, test = config.load("train"), config.load("test")
    assert len(train) + len(test) == 100
    assert {problem.id for problem in (*train, *test)} == {f"files/data-00000-of-00001.arrow/{n}" for n in range(100)}


def test_save_to_disk_of_splits(tmp_path: Path) -> None:
    save_to_disk(tmp_path / "saved" / "train", [{"prompt": CHAT, "answer": str(n)} for n in range(70)])
    save_to_disk(tmp_path / "saved" / "test", [{"prompt": CHAT, "answer": "held out"}])
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    config = FilesConfig(train=tmp_path / "saved")
    assert [problem.reference for problem in config.load("train")] == [str(n) for n in range(70)]
    assert [problem.reference for problem in config.load("test")] == ["held out"]


def test_a_csv_line_with_too_many_values_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("question,answer\n1 + 1?,2\nSum of 1, 2?,3\n")
    with pytest.raises(DataError, match=r"rows.csv, line 3: more values than the 2 columns"):
        FilesConfig(train=tmp_path / "rows.csv").load("train")


@pytest.mark.parametrize("prompt", ["no columns", "{}", "{question", "{question.__class__}", "{0}"])
def test_invalid_templates_are_refused(prompt: str) -> None:
    with pytest.raises(ValidationError, match="braces"):
        FilesConfig(train=Path("x"), prompt=prompt)


def test_braces_around_anything_but_a_column_stay(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "1 + {x}?", "answer": "2"}')
    prompt = r'{question} Answer in \boxed{}, \frac{1}{2} or {"a": 1}; {{question}} stays.'
    (problem,) = FilesConfig(train=tmp_path, test=tmp_path / "rows.jsonl", prompt=prompt).load("test")
    assert problem.messages[0].content == r'1 + {x}? Answer in \boxed{}, \frac{1}{2} or {"a": 1}; {question} stays.'


def test_unpaired_surrogate_is_refused_with_its_row(tmp_path: Path) -> None:
    rows = [{"question": "\ud800 + 1?" if n == 7 else "1 + 1?", "answer": "2"} for n in range(30)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = FilesConfig(train=tmp_path / "rows.jsonl", test=tmp_path / "rows.jsonl")
    with pytest.raises(DataError, match=r"files/rows\.jsonl/7: its prompt is not valid Unicode"):
        config.load("test")


def test_too_few_rows_to_hold_out_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROWS[0]))
    found = FilesConfig(train=tmp_path / "rows.jsonl", held_out=0.001)
    assert len(found.load("train")) == 1
    with pytest.raises(DataError, match=r"has one row, so none can be held out; add rows, or set data.test"):
        found.load("test")


def test_missing_or_empty_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist; give a file"):
        FilesConfig(train=tmp_path / "none.jsonl").load("train")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(DataError, match="holds no rows"):
        FilesConfig(train=tmp_path / "empty.jsonl").load("train")
