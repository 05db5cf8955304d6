"""Splits by the names of files."""

from collections.abc import Sequence

import pytest

from dojang.core.errors import DataError
from dojang.data.readers import File
from dojang.data.splits import choose_split, has_held_out


def files(*names: str, hub_id: str = "") -> list[File]:
    return [File(f"/place/{name}", 1, None, "/place", hub_id) for name in names]


@pytest.mark.parametrize(
    ("names", "train", "test"),
    [
        (["a.jsonl", "b.jsonl"], ["a.jsonl", "b.jsonl"], ["a.jsonl", "b.jsonl"]),
        (["train.jsonl", "test.jsonl"], ["train.jsonl"], ["test.jsonl"]),
        (["data/train-0.parquet", "data/val-0.parquet"], ["data/train-0.parquet"], ["data/val-0.parquet"]),
        (["train/a.arrow", "test/a.arrow", "validation/a.arrow"], ["train/a.arrow"], ["test/a.arrow"]),
        (["train/a.arrow"], ["train/a.arrow"], ["train/a.arrow"]),
    ],
)
def test_files_of_a_split(names: Sequence[str], train: Sequence[str], test: Sequence[str]) -> None:
    assert [file.name for file in choose_split(files(*names), "train")] == train
    assert [file.name for file in choose_split(files(*names), "test")] == test
    assert has_held_out(files(*names)) == (train != test)


def test_a_file_that_was_named_is_read_whatever_it_is_called() -> None:
    (file,) = [File("/place/test.jsonl", 1, None, "/place/test.jsonl")]
    assert choose_split([file], "train") == [file]
    assert not has_held_out([file])


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["test.jsonl", "val.jsonl"], "/place has no train split, only test, validation"),
        (["train.jsonl", "test.jsonl", "more.jsonl"], r"files of splits \(test, train\) and others \(more.jsonl\)"),
        (["train-00000-of-00003.parquet", "train-00002-of-00003.parquet"], "only 2 of the 3 shards of train.parquet"),
    ],
)
def test_unclear_files_are_refused(names: Sequence[str], words: str) -> None:
    with pytest.raises(DataError, match=words):
        choose_split(files(*names), "train")


def test_a_subset_on_the_hub_must_be_named() -> None:
    subsets = ["main/train-0.parquet", "main/test-0.parquet", "socratic/train-0.parquet"]
    with pytest.raises(DataError, match=r"openai/gsm8k has the subsets main, socratic; .*such as openai/gsm8k/main"):
        choose_split(files(*subsets, hub_id="openai/gsm8k"), "train")
    assert len(choose_split(files(*subsets), "train")) == 2  # a local directory has what its owner put there
    assert choose_split(files("train/a.jsonl", "test/a.jsonl", hub_id="org/name"), "test")
