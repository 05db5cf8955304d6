"""Pages of rollouts from the index: filters, orders, counts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dojang.core.errors import ConfigError
from dojang.viewer.index import NAMES, NULL, ORDERS, Index, Snapshot

__all__ = ["BOUNDS", "RolloutFilter", "Row", "check_order", "facets", "find_rows", "page", "rows_at"]

Row = dict[str, Any]
Places = NDArray[np.integer[Any]]
BOUNDS: Mapping[str, tuple[str, Any]] = {
    "step": ("step", np.equal),
    "from_step": ("step", np.greater_equal),
    "to_step": ("step", np.less_equal),
    "turn": ("turn", np.equal),
    "min_reward": ("reward", np.greater_equal),
    "max_reward": ("reward", np.less_equal),
}
"""Column and comparison of each bound."""
_ROW = (
    *("step", "prompt_index", "index", "turn", "role", "problem", "data_source", "outcome", "reward"),
    *("advantage", "response_length", "finish", "version", "passed", "total"),
)
_FACETS = ("outcome", "role", "finish", "data_source", "turn")
_CHUNK = 1 << 15
_SORT_COST = 16
"""Time to sort a row, in units of the time to look whether one row of an order matches."""


@dataclass(frozen=True)
class RolloutFilter:
    """Conditions that rollouts must meet."""

    bounds: Mapping[str, float] = field(default_factory=dict)
    """Values by name (BOUNDS)."""
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Allowed names by column (NAMES)."""

    @property
    def key(self) -> tuple[Any, ...]:
        return tuple(self.bounds.items()), tuple((name, tuple(some)) for name, some in self.names.items())

    def matches(self, rows: Snapshot) -> NDArray[np.bool_] | None:
        """Which rows meet the conditions; None if there are none."""
        if not (self.bounds or self.names):
            return None
        return rows.remember(self.key, lambda: reduce(np.logical_and, self._conditions(rows)))

    def _conditions(self, rows: Snapshot) -> Iterable[NDArray[np.bool_]]:
        for name, value in self.bounds.items():
            column, holds = BOUNDS[name]
            yield holds(rows.columns[column], value)
        for column, names in self.names.items():
            numbers = [rows.names.number(column, name) for name in names]
            yield reduce(np.logical_or, (rows.columns[column] == number for number in numbers))


def check_order(sort: str, known: Sequence[str] = ORDERS) -> str:
    """The order, if it is known; else raises ConfigError."""
    if sort.removeprefix("-") not in known:
        raise ConfigError(f"sort={sort!r:.80} is unknown; choose one of {', '.join(known)}; a minus reverses it")
    return sort


def page(rows: Snapshot, matches: NDArray[np.bool_] | None, sort: str, offset: int, limit: int) -> tuple[Places, int]:
    """Positions of the rows of one page, and the number of all that match."""
    if matches is None:
        return rows.order(check_order(sort))[offset : offset + limit], len(rows)
    check_order(sort)
    total = int(np.count_nonzero(matches))
    if offset >= total:
        return np.empty(0, np.int32), total
    looked_at = (offset + limit) * len(rows) / total  # how far to walk until enough rows have matched
    if total * _SORT_COST < looked_at:
        found = rows.sorted_places(sort, np.flatnonzero(matches))
        return found[offset : offset + limit], total
    return _walk(rows.order(sort), matches, offset, limit), total


def _walk(order: Places, matches: NDArray[np.bool_], offset: int, limit: int) -> Places:
    """Matching rows along an order, from `offset` on."""
    found: list[Places] = []
    skipped, wanted = 0, limit
    for first in range(0, len(order), _CHUNK):
        here = order[first : first + _CHUNK]
        here = here[matches[here]]
        if skipped + len(here) > offset:
            some = here[max(offset - skipped, 0) :][:wanted]
            found.append(some)
            wanted -= len(some)
        skipped += len(here)
        if not wanted:
            break
    return np.concatenate(found) if found else np.empty(0, np.int32)


def find_rows(rows: Snapshot, ids: Mapping[str, int]) -> Places:
    """Positions of the rows with these step, prompt_index, index, ..., in order. The first one named reads all rows."""
    (first, wanted), *rest = ids.items()
    found = np.flatnonzero(rows.columns[first] == wanted)
    for name, value in rest:
        found = found[rows.columns[name][found] == value]
    return found[np.argsort(rows.columns["tie"][found])]


def rows_at(rows: Snapshot, kind: str, places: Places) -> list[Row]:
    """Short columns of rows, with names, and None for what is missing."""
    columns = {name: rows.columns[name][places].tolist() for name in _ROW}
    for name in NAMES:
        columns[name] = [rows.names.text(name, each) for each in columns[name]]
    for name in _ROW:
        columns[name] = [None if each == NULL or each != each else each for each in columns[name]]  # NaN is not itself
    return [{"kind": kind, **dict(zip(_ROW, values, strict=True))} for values in zip(*columns.values(), strict=True)]


def facets(index: Index, kind: str, step: int | None) -> dict[str, Any]:
    """Kinds with their first and last steps and numbers of samples; number of samples of a kind by each name."""
    found: dict[str, Any] = {"kinds": {}}
    for each in index.kinds:
        steps = index.rows(each).columns["step"]
        found["kinds"][each] = [int(steps.min()), int(steps.max()), len(steps)]
    rows = index.rows(kind)
    return found | rows.remember(("facets", step), lambda: {column: _counts(rows, column, step) for column in _FACETS})


def _counts(rows: Snapshot, column: str, step: int | None) -> dict[str, int]:
    values = rows.columns[column]
    if step is not None:
        values = values[rows.columns["step"] == step]
    numbers, counts = np.unique(values, return_counts=True)
    named = column in NAMES
    names = [str(rows.names.text(column, number) if named else number) for number in numbers.tolist()]
    return dict(sorted(zip(names, counts.tolist(), strict=True), key=lambda each: -each[1]))
