"""Reads the short columns of a rollout file as rows of the index."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dojang.core.rollout_schema import rollout_schema
from dojang.viewer.index import COLUMNS, NAMES, NULL, Names
from dojang.viewer.records import response_lengths

__all__ = ["read_rows"]

_NUMBERS = ("prompt_index", "index", "turn", "version", "passed", "total")
_DECIMALS = ("reward", "advantage")


def read_rows(file: Any, names: Names, number: int, step: int) -> Mapping[str, NDArray[Any]]:
    """Rows of the index for an open Parquet file with this number. Reads numbers and names, no text; the mask only
    where the file has no column `response_length`. Raises ArrowException if a column has another type."""
    there = set(file.schema_arrow.names)
    length = "response_length" if "response_length" in there else "mask"
    wanted = [*_NUMBERS, *_DECIMALS, *NAMES]
    read = file.read(columns=[name for name in (*wanted, length) if name in there], use_threads=False)
    types = rollout_schema()
    columns = {name: _column(read, name, types.field(name).type) for name in wanted}
    ranks = _ranks(columns)
    count = read.num_rows
    found: dict[str, NDArray[Any]] = {
        "file": np.full(count, number),
        "row": np.arange(count),
        "step": np.full(count, step),
        "tie": (np.int64(step) << 32) + ranks,
        "response_length": _lengths(read, length),
        **{name: _whole(columns[name]) for name in _NUMBERS},
        **{name: _decimal(columns[name]) for name in _DECIMALS},
        **{name: names.encode(name, columns[name]) for name in NAMES},
    }
    return {name: found[name].astype(dtype, copy=False) for name, dtype in COLUMNS.items()}


def _column(read: pa.Table, name: str, kind: pa.DataType) -> pa.Array:
    if name not in read.column_names:
        return pa.nulls(read.num_rows, kind)
    return read[name].cast(kind).combine_chunks()


def _whole(values: pa.Array) -> NDArray[Any]:
    found: NDArray[Any] = pc.fill_null(values, NULL).to_numpy(zero_copy_only=False)
    return found


def _decimal(values: pa.Array) -> NDArray[Any]:
    """NaN for a missing value and for infinity, which have no place in JSON."""
    found: NDArray[Any] = pc.fill_null(values, np.nan).to_numpy(zero_copy_only=False)
    return np.where(np.isfinite(found), found, np.nan)


def _lengths(read: pa.Table, name: str) -> NDArray[Any]:
    if name not in read.column_names:
        return np.full(read.num_rows, NULL)
    if name == "response_length":
        return _whole(_column(read, name, pa.int32()))
    return response_lengths(_column(read, name, pa.list_(pa.bool_())))


def _ranks(columns: Mapping[str, pa.Array]) -> NDArray[np.int64]:
    """Place of each row in the order of prompt, sample, turn and role."""
    table = pa.table({name: columns[name] for name in ("prompt_index", "index", "turn", "role")})
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in table.column_names])
    ranks = np.empty(table.num_rows, np.int64)
    ranks[order.to_numpy()] = np.arange(table.num_rows)
    return ranks
