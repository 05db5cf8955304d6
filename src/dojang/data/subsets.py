"""Subsets of a dataset: directories of its files, as on the Hugging Face hub (`main/train-00000.parquet`)."""

from collections.abc import Collection, Sequence
from pathlib import PurePosixPath

from dojang.core.errors import DataError
from dojang.data.readers import File

__all__ = ["choose"]


def choose(files: Sequence[File], wanted: Collection[str], dataset: object) -> tuple[list[File], list[str]]:
    """Returns the files of the wanted subsets, and the names of subsets that were skipped because they were not named.

    With none wanted, a dataset may prefer a subset (`preferred`), and may skip subsets that must be named
    (`only_if_named`). A single file of such a subset names it by its directory.
    """
    named = getattr(dataset, "only_if_named", ())
    files = [
        file.with_directory() if file.root == file.path and PurePosixPath(file.path).parent.name in named else file
        for file in files
    ]
    there = sorted({part for file in files for part in _directories(file)})
    if unknown := [name for name in wanted if name not in there]:
        has = f"subsets: {', '.join(there)}" if there else "it has no directories"
        raise DataError(f"--subset {', '.join(unknown)}: no such directory in {files[0].root}; {has}")
    if wanted:
        return [file for file in files if _directories(file) & set(wanted)], []
    preferred = getattr(dataset, "preferred", "")
    if preferred in there:
        return [file for file in files if preferred in _directories(file)], []
    left_out = [name for name in there if name in named]
    kept = [file for file in files if not _directories(file) & set(left_out)]
    if not kept:
        raise DataError(f"{files[0].root} has only {', '.join(left_out)}; name one with --subset")
    return kept, left_out


def _directories(file: File) -> set[str]:
    return set(PurePosixPath(file.name).parent.parts)
