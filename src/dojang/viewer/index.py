"""Index of a run's rollouts: the short columns of all rollout files, in memory, about 100 bytes per sample.

Names (problems, outcomes, ...) are numbers, so a filter compares integers. An order is a permutation of the rows that
is computed once and then kept up to date, so a page of a million sorted rows is a slice, and a page of filtered rows is
found by walking along the permutation. A database would sort anew for every page (measured with DuckDB: 60 to 150 ms
for a million rows, against 1 to 3 ms).

One thread adds rows. Requests read a `Snapshot`, which does not change.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["COLUMNS", "NAMES", "NULL", "ORDERS", "Index", "Names", "Snapshot"]

NAMES = ("problem", "data_source", "outcome", "finish", "role")
"""Columns that hold numbers of names."""
NULL = -(2**31)
"""Stands for a missing whole number; NaN stands for a missing reward or advantage."""
COLUMNS: Mapping[str, Any] = {
    "tie": np.int64,
    "prompt_index": np.int64,
    "version": np.int64,
    "reward": np.float64,
    "advantage": np.float64,
    **dict.fromkeys(("file", "row", "step", "index", "turn", "response_length", "passed", "total", *NAMES), np.int32),
}
"""`tie` is the order of step, prompt, sample, turn and role as one number; `file` and `row` say where the sample is."""
ORDERS = ("step", "reward", "advantage", "response_length", "problem", "outcome", "passed", "version")
_MERGED = 4096
"""New rows up to which an order is merged instead of computed again."""
Ints = NDArray[np.int32]
T = TypeVar("T")
_CACHED = 16
Places = NDArray[np.integer[Any]]


class Names:
    """Numbers of names, by column."""

    def __init__(self) -> None:
        self._numbers: dict[str, dict[str | None, int]] = {name: {} for name in NAMES}
        self._texts: dict[str, list[str | None]] = {name: [] for name in NAMES}
        self._ranks: dict[str, Ints] = {}
        self._lock = Lock()

    def encode(self, column: str, values: pa.Array) -> Ints:
        """Numbers of names, which are added if they are new."""
        encoded = values.dictionary_encode(null_encoding="encode")
        numbers, texts = self._numbers[column], self._texts[column]
        given = encoded.dictionary.to_pylist()
        with self._lock:
            for name in given:
                if name not in numbers:
                    texts.append(name)
                    numbers[name] = len(texts) - 1
        found = np.array([numbers[name] for name in given], np.int32)
        return found[encoded.indices.to_numpy(zero_copy_only=False)] if len(values) else found[:0]

    def number(self, column: str, name: str) -> int:
        """Number of a name; -1, which no row has, if there is none."""
        return self._numbers[column].get(name, -1)

    def text(self, column: str, number: int) -> str | None:
        """Name of a number."""
        return self._texts[column][number]

    def texts(self, column: str) -> list[str | None]:
        """All names, by number."""
        return list(self._texts[column])

    def ranks(self, column: str) -> Ints:
        """Place of each number in the order of the names; a missing name is last."""
        texts = self.texts(column)
        ranks = self._ranks.get(column)
        if ranks is None or len(ranks) != len(texts):
            ranks = np.empty(len(texts), np.int32)
            order = sorted(range(len(texts)), key=lambda number: (texts[number] is None, texts[number] or ""))
            ranks[order] = np.arange(len(texts), dtype=np.int32)
            self._ranks[column] = ranks
        return ranks


@dataclass(eq=False)
class Snapshot:
    """Rows of one kind at one time."""

    names: Names
    columns: Mapping[str, NDArray[Any]]
    orders: dict[str, Places] = field(default_factory=dict)
    """Permutations by order (ORDERS, with a minus for descending), as far as they were asked for."""
    cache: dict[Any, Any] = field(default_factory=dict)
    """Results that hold for these rows: matches of filters, counts."""
    lock: Lock = field(default_factory=Lock, repr=False)

    def remember(self, key: Any, compute: Callable[[], T]) -> T:
        """A result that holds for these rows, computed when it is first asked for. The oldest of many are dropped."""
        with self.lock:
            if key in self.cache:
                known: T = self.cache[key]
                return known
        found = compute()
        with self.lock:
            while len(self.cache) >= _CACHED:
                del self.cache[next(iter(self.cache))]
            self.cache[key] = found
        return found

    def __len__(self) -> int:
        return len(self.columns["tie"])

    def order(self, sort: str) -> Places:
        """Positions of all rows in an order; rows without a value come last, equal ones in the order of `tie`."""
        if (found := self.orders.get(sort)) is None:
            found = self.sorted_places(sort, np.arange(len(self), dtype=np.int32))
            self.orders[sort] = found
        return found

    def sorted_places(self, sort: str, places: Places) -> Places:
        """These positions in an order."""
        return places[np.lexsort((self.columns["tie"][places], self.keys(sort, places)))]

    def keys(self, sort: str, places: Places | slice = slice(None)) -> NDArray[np.float64]:
        """Numbers that sort rows into an order, apart from ties."""
        column = sort.removeprefix("-")
        values = self.columns[column][places]
        if column in NAMES:
            values = self.names.ranks(column)[values]
        missing = np.isnan(values) if values.dtype == np.float64 else values == NULL
        keys = values.astype(np.float64)
        return np.where(missing, np.inf, -keys if sort.startswith("-") else keys)

    def with_rows(self, new: Mapping[str, NDArray[Any]]) -> "Snapshot":
        """These rows and new ones. Orders that were asked for are kept up to date if the new rows are few."""
        added = Snapshot(self.names, {name: np.concatenate([self.columns[name], new[name]]) for name in COLUMNS})
        count = len(added) - len(self)
        if 0 < count <= _MERGED and len(self) > count:
            for sort, order in list(self.orders.items()):
                if sort.removeprefix("-") not in NAMES:  # new names move the ranks of others
                    added.orders[sort] = added.merge(sort, order, count)
        return added

    def merge(self, sort: str, order: Places, count: int) -> Places:
        """An order of all rows, from one of all but the last `count`."""
        keys, ties = self.keys(sort), self.columns["tie"]
        new = self.sorted_places(sort, np.arange(len(order), len(order) + count, dtype=np.int32))
        pairs = _Pairs(keys, ties, order)
        at = [bisect_left(pairs, (keys[place], ties[place])) for place in new]
        return np.insert(order, at, new)

    def without(self, files: Sequence[int]) -> "Snapshot":
        """These rows without those of files."""
        kept = ~np.isin(self.columns["file"], np.array(files, np.int32))
        return Snapshot(self.names, {name: values[kept] for name, values in self.columns.items()})


@dataclass(frozen=True)
class _Pairs(Sequence[tuple[float, int]]):
    """Keys and ties in an order, without a copy of them."""

    keys: NDArray[np.float64]
    ties: NDArray[np.int64]
    order: Places

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, place: Any) -> Any:
        at = self.order[place]
        return self.keys[at], self.ties[at]


class Index:
    """Rollouts of a run, by kind."""

    def __init__(self) -> None:
        self.names = Names()
        self.version = 0
        """Changes whenever the rows do."""
        self._kinds: dict[str, Snapshot] = {}
        self._lock = Lock()

    @property
    def kinds(self) -> list[str]:
        """Kinds that have rows."""
        with self._lock:
            return sorted(kind for kind, rows in self._kinds.items() if len(rows))

    def rows(self, kind: str) -> Snapshot:
        """Rows of a kind as they are now."""
        with self._lock:
            found = self._kinds.get(kind)
        return found or Snapshot(self.names, {name: np.empty(0, dtype) for name, dtype in COLUMNS.items()})

    def insert(self, kind: str, batches: Sequence[Mapping[str, NDArray[Any]]]) -> None:
        """Adds rows."""
        new = {name: np.concatenate([each[name] for each in batches]) for name in COLUMNS}
        self._replace(kind, self.rows(kind).with_rows(new))

    def delete(self, kind: str, files: Sequence[int]) -> None:
        """Removes the rows of files."""
        self._replace(kind, self.rows(kind).without(files))

    def _replace(self, kind: str, rows: Snapshot) -> None:
        with self._lock:
            self._kinds[kind] = rows
            self.version += 1
