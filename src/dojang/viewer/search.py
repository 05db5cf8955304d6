"""Text search over the responses, questions and problem ids of a run, in a thread, the newest files first.

One search of a run goes on at a time. Another one pauses it, and when it is asked for again it goes on where it was,
so two open pages do not undo each other's work. A search also pauses when no page asks for it any more.
"""

import time
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from threading import Condition, Thread
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dojang.core.errors import RunDirError
from dojang.viewer.index import Snapshot
from dojang.viewer.run_index import IndexedFile, RunIndex

__all__ = ["Found", "Searches"]

_COLUMNS = ("response", "question", "problem")
_BATCH_ROWS = 256
_KEPT = 8
"""Searches whose matches are kept."""
_PATIENCE_S = 20.0
"""A search that was not asked for in this time pauses."""
_FIRST_S = 0.3
"""Time that a request waits for a search to end, so that a short one needs no second request."""
_ENOUGH = 100
"""Matches that fill a page: a request does not wait for more."""
_LONGEST = 1000
_UNREADABLE = (OSError, KeyError, ValueError, pa.ArrowException, RunDirError)


@dataclass(eq=False)
class Found:
    """Matches of a search so far."""

    text: str
    files: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    """Matching rows of each file that was searched."""
    asked: float = 0.0
    count: int = 0
    """Number of matches, also of files that are gone."""

    def add(self, number: int, rows: NDArray[np.int64]) -> None:
        """Notes the matching rows of a file."""
        self.files[number] = rows
        self.count += len(rows)

    def matches(self, rows: Snapshot) -> NDArray[np.bool_]:
        """Which rows of the index match."""
        wanted = [np.int64(file) << 32 | some for file, some in list(self.files.items()) if len(some)]
        if not wanted:
            return np.zeros(len(rows), np.bool_)
        keys = rows.columns["file"].astype(np.int64) << 32 | rows.columns["row"]
        return np.isin(keys, np.concatenate(wanted))


class Searches:
    """Searches of one run."""

    def __init__(self, index: RunIndex) -> None:
        self._index = index
        self._known: OrderedDict[str, Found] = OrderedDict()
        self._current: Found | None = None
        self._closed = False
        self._changed = Condition()
        self._thread: Thread | None = None

    def ask(self, text: str) -> tuple[dict[str, Any], Found]:
        """Starts a search or goes on with it; returns its progress and its matches so far."""
        text = text[:_LONGEST]
        with self._changed:
            found = self._known.setdefault(text, Found(text))
            self._known.move_to_end(text)
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
            found.asked, self._current = time.monotonic(), found
            if self._thread is None:
                self._thread = Thread(target=self._run, name="search", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closed or found.count >= _ENOUGH or self._is_done(found), _FIRST_S)
        files = list(self._index.indexed)
        done = sum(number in found.files for number in files)
        matches = sum(len(found.files[number]) for number in files if number in found.files)
        whole = done == len(files) and self._index.is_current
        return {"files": done, "of": len(files), "done": whole, "found": matches}, found

    def close(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _is_done(self, found: Found) -> bool:
        return all(number in found.files for number in self._index.indexed)

    def _left(self, found: Found) -> list[IndexedFile]:
        return [each for each in self._index.newest_first() if each.number not in found.files]

    def _run(self) -> None:
        while not self._closed:
            search = self._current
            is_wanted = search is not None and time.monotonic() - search.asked < _PATIENCE_S
            left = self._left(search) if search is not None and is_wanted else []
            if search is None or not left:
                with self._changed:
                    self._changed.notify_all()
                    self._changed.wait(1.0)
                continue
            for first in range(0, len(left), self._index.at_once):
                if self._closed or self._current is not search or time.monotonic() - search.asked > _PATIENCE_S:
                    break
                files = left[first : first + self._index.at_once]
                for file, rows in zip(
                    files, self._index.readers.map(partial(self._search, search.text), files), strict=True
                ):
                    search.add(file.number, rows)
                with self._changed:
                    self._changed.notify_all()

    def _search(self, text: str, file: IndexedFile) -> NDArray[np.int64]:
        """Rows of a file that have the text; none if it cannot be read."""
        matches = []
        try:
            with self._index.files.open_parquet(file.info.name) as opened:
                columns = [name for name in _COLUMNS if name in opened.schema_arrow.names]
                for batch in opened.iter_batches(_BATCH_ROWS, columns=columns, use_threads=False):
                    hits = [_has(batch[name], text) for name in columns]
                    matches.append(np.logical_or.reduce(hits))
        except _UNREADABLE:
            return np.empty(0, np.int64)
        return np.flatnonzero(np.concatenate(matches)) if matches else np.empty(0, np.int64)


def _has(texts: pa.Array, wanted: str) -> NDArray[np.bool_]:
    hits = pc.match_substring(texts, wanted, ignore_case=True)
    found: NDArray[np.bool_] = pc.fill_null(hits, False).to_numpy(zero_copy_only=False)
    return found
