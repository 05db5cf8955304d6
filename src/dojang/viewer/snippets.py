"""Beginnings of responses, for tables of rollouts.

Text is the bulk of a rollout file, and a page of a sorted table has rows of many files. So the first characters of all
responses of a file are written to one file of this process when the file is first looked at; a page then takes one
short read per row.
"""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dojang.core.errors import RunDirError
from dojang.core.run_files import RunFiles

__all__ = ["SNIPPET_CHARACTERS", "Snippets"]

SNIPPET_CHARACTERS = 160
_BATCH_ROWS = 256
_THREADS = 16
"""Files that are read at the same time; for S3, whose every read takes a round trip."""


class Snippets:
    """Snippets of the responses of a run."""

    def __init__(self, files: RunFiles, path: Path) -> None:
        self._files = files
        self._store = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self._end = 0
        self._places: dict[int, np.ndarray[tuple[int], np.dtype[np.int64]]] = {}
        """Offsets in the store, by number of the file: one more than it has rows."""
        self._lock = Lock()
        self._readers = ThreadPoolExecutor(_THREADS, "snippets")

    def close(self) -> None:
        self._readers.shutdown(cancel_futures=True)
        os.close(self._store)

    def forget(self, numbers: Iterable[int]) -> None:
        """Drops files that were deleted or replaced."""
        for number in numbers:
            self._places.pop(number, None)

    def get(self, rows: Sequence[tuple[int, str, int]]) -> list[str | None]:
        """Snippets of rows: number and name of the file, and row in it. None if a file cannot be read."""
        missing = {number: name for number, name, _ in rows if number not in self._places}
        list(self._readers.map(self.load, missing.keys(), missing.values()))
        return [self._read(number, row) for number, _, row in rows]

    def _read(self, number: int, row: int) -> str | None:
        places = self._places.get(number)
        if places is None or row + 1 >= len(places):
            return None
        first, last = int(places[row]), int(places[row + 1])
        return os.pread(self._store, last - first, first).decode()

    def load(self, number: int, name: str) -> None:
        """Stores the snippets of a file, unless they are there. A file that cannot be read has none."""
        if number in self._places:
            return
        texts, lengths = [], []
        try:
            with self._files.open_parquet(name) as file:
                for batch in file.iter_batches(_BATCH_ROWS, columns=["response"], use_threads=False):
                    cut = pc.utf8_slice_codeunits(pc.fill_null(batch["response"], ""), 0, SNIPPET_CHARACTERS)
                    texts.append("".join(cut.to_pylist()).encode())
                    lengths.append(pc.binary_length(cut).to_numpy(zero_copy_only=False))
        except (OSError, KeyError, ValueError, pa.ArrowException, RunDirError):
            return
        ends = np.cumsum(np.concatenate([np.zeros(1, np.int64), *lengths]), dtype=np.int64)
        with self._lock:
            os.pwrite(self._store, b"".join(texts), self._end)
            self._places[number] = ends + self._end
            self._end += int(ends[-1])
