"""Rows given in Python: lists of dicts, data frames, tables and datasets -> plain dicts, and their copy in the cache.

pandas, polars, pyarrow and datasets are recognised by their methods, so none of them has to be installed.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dojang.core.errors import DataError
from dojang.core.paths import cache_root

__all__ = ["argument_of", "cached_file", "to_rows"]

_ACCEPTED = (
    "a list of dicts, another iterable of dicts, a pandas or polars DataFrame, a pyarrow Table, a datasets.Dataset, or "
    "a path, s3:// address or hub id of a dataset"
)


def to_rows(dataset: object, argument: str = "dataset") -> list[dict[str, Any]]:
    """Returns the rows of a dataset as dicts of plain Python values: numpy scalars and arrays become numbers and lists,
    a missing value of a DataFrame becomes None. Raises DataError, with the row's index and the name of the argument, if
    a row is not a dict."""
    rows = [_row(row, f"row {at} of the {argument}") for at, row in enumerate(_iterate(dataset, argument))]
    if not rows:
        raise DataError(f"the {argument} ({_kind(dataset)}) has no rows")
    return rows


def cached_file(argument: str, digest: str) -> Path:
    """Path in the cache for the rows of an argument, by a digest of their content."""
    return cache_root() / "datasets" / digest / f"{argument}.jsonl"


def argument_of(path: str) -> str:
    """Name of the argument whose rows a file of the cache holds; empty for any other file."""
    file = Path(path)
    return file.stem if file.parent.parent == cached_file("", "").resolve().parent else ""


def _iterate(dataset: Any, argument: str) -> Any:
    if isinstance(dataset, str | Path):
        from dojang.data.readers import find  # imported late: loads pyarrow

        return (row for file in find(str(dataset)) for _, row in file.rows())
    if isinstance(dataset, Mapping):
        keys = ", ".join(map(repr, list(dataset)[:8]))
        raise DataError(
            f"the {argument} is a {_kind(dataset)} with the keys {keys}, not rows. If they are splits, give one of "
            "them, such as dataset['train']; if they are columns, give pandas.DataFrame(dataset)"
        )
    if hasattr(dataset, "to_pylist"):  # pyarrow.Table, pyarrow.RecordBatch
        return dataset.to_pylist()
    if hasattr(dataset, "to_dicts"):  # polars.DataFrame
        return dataset.to_dicts()
    if hasattr(dataset, "iterrows"):  # pandas.DataFrame
        return dataset.astype(object).where(dataset.notna(), None).to_dict(orient="records")
    try:
        return iter(dataset)
    except TypeError:
        raise DataError(f"the {argument} is a {_kind(dataset)}; give {_ACCEPTED}") from None


def _row(row: object, position: str) -> dict[str, Any]:
    if not isinstance(row, Mapping):
        raise DataError(f"{position} is a {_kind(row)}, not a dict: {row!r:.80}; give {_ACCEPTED}")
    for column in row:
        if not isinstance(column, str):
            raise DataError(f"{position}: the column name {column!r} is a {_kind(column)}, not text")
    try:
        return {str(column): _plain(value) for column, value in row.items()}
    except RecursionError:
        raise DataError(f"{position} contains itself, or is nested too deeply") from None


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # numpy scalars and arrays, tensors, series
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _kind(value: object) -> str:
    return type(value).__name__
