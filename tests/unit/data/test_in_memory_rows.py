"""Rows given in Python. `make test-trl` has pandas and datasets."""

import json
from collections import UserDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dojang.core.errors import DataError
from dojang.data.in_memory import to_rows

ROWS = [{"prompt": [{"role": "user", "content": f"{a} + 1?"}], "answer": a + 1} for a in range(3)]


def generated() -> Iterator[dict[str, Any]]:
    yield from ROWS


@pytest.mark.parametrize(
    "dataset",
    [ROWS, tuple(ROWS), generated(), map(UserDict, ROWS), pa.Table.from_pylist(ROWS)],
    ids=["list", "tuple", "generator", "mappings", "pyarrow"],
)
def test_collections_of_rows(dataset: object) -> None:
    rows = to_rows(dataset)
    assert rows == ROWS
    assert all(type(row) is dict for row in rows)


@pytest.mark.parametrize("as_path", [str, Path])
def test_files_by_path(as_path: type, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    assert to_rows(as_path(tmp_path / "rows.jsonl")) == ROWS
    assert to_rows(as_path(tmp_path)) == ROWS


def test_numpy_becomes_plain_python() -> None:
    row = {"a": np.float32(0.5), "b": np.arange(2), "c": {"d": (np.int64(3), np.bool_(True))}, "e": np.str_("x")}
    (found,) = to_rows([row])
    assert json.loads(json.dumps(found)) == {"a": 0.5, "b": [0, 1], "c": {"d": [3, True]}, "e": "x"}
    assert [type(found[key]) for key in "abe"] == [float, list, str]


def test_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([{"question": "1 + 1?", "answer": 2, "hint": None}, {"question": "?", "hint": "h"}])
    assert to_rows(frame) == [
        {"question": "1 + 1?", "answer": 2, "hint": None},
        {"question": "?", "answer": None, "hint": "h"},
    ]
    assert to_rows(pandas.DataFrame(ROWS)) == ROWS


def test_polars() -> None:
    polars = pytest.importorskip("polars")
    assert to_rows(polars.DataFrame(ROWS)) == ROWS


def test_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_list(ROWS)
    assert to_rows(dataset) == ROWS
    assert to_rows(dataset.with_format("numpy")) == ROWS
    assert to_rows(dataset.to_iterable_dataset()) == ROWS
    dataset.save_to_disk(tmp_path / "saved")
    assert to_rows(tmp_path / "saved") == ROWS
    with pytest.raises(DataError, match=r"DatasetDict with the keys 'train'.*dataset\['train'\]"):
        to_rows(datasets.DatasetDict(train=dataset))


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        ([{"a": 1}] * 17 + ["text"], "row 17 of the dataset is a str, not a dict: 'text'"),
        ([{"a": 1}, {2: "b"}], "row 1 of the dataset: the column name 2 is a int"),
        ({"train": ROWS}, r"dict with the keys 'train', not rows.*dataset\['train'\]"),
        ([], "the dataset .list. has no rows"),
        (7, "the dataset is a int; give a list of dicts"),
        ("no/such/file.jsonl", "no/such/file.jsonl does not exist"),
    ],
)
def test_anything_else_is_refused(dataset: object, words: str) -> None:
    with pytest.raises(DataError, match=words):
        to_rows(dataset)
