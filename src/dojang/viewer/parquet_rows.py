"""Reads single rows of Parquet files: only the columns asked for, and only the row groups that hold the rows."""

from collections.abc import Collection, Sequence
from typing import Any

from dojang.core.run_files import RunFiles

__all__ = ["read_parquet_rows"]

_BATCH_ROWS = 64
"""Rows that are decoded at a time: those before the wanted ones are dropped at once."""


def read_parquet_rows(
    files: RunFiles, name: str, rows: Collection[int], columns: Sequence[str]
) -> dict[int, dict[str, Any]]:
    """Rows of a file by their number, as plain values; columns that the file lacks are None. Raises OSError or
    ArrowException if the file is missing or damaged."""
    wanted = sorted(rows)
    found: dict[int, dict[str, Any]] = {}
    with files.open_parquet(name) as file:
        there = [column for column in columns if column in file.schema_arrow.names]
        first = 0
        for group in range(file.metadata.num_row_groups):
            after = first + file.metadata.row_group(group).num_rows
            if here := [row for row in wanted if first <= row < after]:
                found |= _read_group(file, group, first, here, there)
            first = after
    return {row: dict.fromkeys(columns) | values for row, values in found.items()}


def _read_group(
    file: Any, group: int, first: int, wanted: Sequence[int], columns: Sequence[str]
) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=list(columns), use_threads=False):
        for row in wanted:
            if first <= row < first + batch.num_rows:
                found[row] = batch.slice(row - first, 1).to_pylist()[0]
        first += batch.num_rows
        if len(found) == len(wanted):
            break
    return found
