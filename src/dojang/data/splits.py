"""Splits of a dataset, by the names of its files and directories (`train-00000.parquet`, `test/data.arrow`)."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from dojang.core.errors import DataError
from dojang.data.readers import File

__all__ = ["choose_split", "has_held_out", "split_names"]

_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("valid", "validation", "val", "dev"), "validation"),
    "test": "test",
}
"""Words in file names -> split."""
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\b")


def split_names(file: str) -> set[str]:
    """Returns the splits named by a file, or else by its directories, innermost first."""
    for part in reversed(Path(file).parts):
        if found := {_WORDS[word] for word in re.split(r"[^a-z]+", part.lower()) if word in _WORDS}:
            return found
    return set()


def has_held_out(files: Sequence[File]) -> bool:
    """Returns whether some files are named after a training split and others after a test or validation split."""
    found = _by_split(files)
    return "train" in found and len(found) > 1


def choose_split(files: Sequence[File], split: str) -> list[File]:
    """Returns the files of the `train` or `test` split of a place: all of them if no file is named after a split.

    `test` is the validation split of a dataset without a test split, or the only split. Raises DataError if it is not
    clear which files belong to the split.
    """
    _check_subsets(files)
    found = _by_split(files)
    if not found:
        return list(files)
    wanted = ("train",) if split == "train" else ("test", "validation", *(found if len(found) == 1 else ()))
    chosen = next((found[name] for name in wanted if name in found), None)
    if chosen is None:
        raise DataError(
            f"{files[0].root} has no {split} split, only {', '.join(sorted(found))} (by the names of its files); name "
            "the file to read"
        )
    _check_shards(chosen)
    return chosen


def _by_split(files: Sequence[File]) -> dict[str, list[File]]:
    """Returns the files by the split that they name; empty if they name none. Raises DataError if only some do."""
    found: dict[str, list[File]] = {}
    if len(files) == 1 and files[0].root == files[0].path:  # one file was named: read it, whatever it is called
        return found
    others: list[File] = []
    for file in files:
        names = split_names(file.name)
        (found.setdefault(names.pop(), []) if len(names) == 1 else others).append(file)
    if found and others:
        raise DataError(
            f"{files[0].root} has files of splits ({', '.join(sorted(found))}) and others ({others[0].name}); name the "
            "file to read, or a directory with files of one kind"
        )
    return found


def _check_subsets(files: Sequence[File]) -> None:
    """Raises DataError for a hub dataset of several subsets, which are alternatives (openai/gsm8k: main, socratic)."""
    tops = {parts[0] for file in files if file.hub_id and len(parts := PurePosixPath(file.name).parts) > 1}
    subsets = sorted(top for top in tops if not split_names(top))
    if len(subsets) > 1:
        name = files[0].hub_id
        raise DataError(f"{name} has the subsets {', '.join(subsets)}; name one of them, such as {name}/{subsets[0]}")


def _check_shards(files: Sequence[File]) -> None:
    """Raises DataError if shards are missing, as in a hub cache after an interrupted download."""
    count = Counter((_SHARD.sub("", file.name), int(shard[2])) for file in files if (shard := _SHARD.search(file.name)))
    for (name, of), there in count.items():
        if there != of:
            raise DataError(f"{files[0].root}: only {there} of the {of} shards of {name} are there; fetch the others")
