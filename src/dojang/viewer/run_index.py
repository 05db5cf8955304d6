"""Keeps the index of a run up to date, in a thread: new files, replaced ones, and those that a rewind deleted.

The newest files come first, so the page is useful before a long run is indexed. A file that cannot be read is skipped
with a note, and read again when its size or time changes.
"""

import logging
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Condition, Event, Thread
from typing import Any

import pyarrow as pa
from numpy.typing import NDArray

from dojang.core.errors import RunDirError
from dojang.core.run_files import FileInfo, RunFiles
from dojang.viewer.index import Index
from dojang.viewer.rollout_columns import read_rows
from dojang.viewer.snippets import Snippets

__all__ = ["IndexedFile", "RunIndex"]

logger = logging.getLogger(__name__)
_POLL_S = {False: 1.0, True: 10.0}
"""Seconds between two looks at a local directory, and at S3."""
_AT_ONCE = {False: 2, True: 16}
"""Files that are read at the same time. In S3 each takes several round trips."""
_RETRY_S = 60.0
"""Seconds until a file in S3 is read again after an error, which may have been one of the network."""
_BATCH_S = 0.5
_ALL_S, _FIRST_S, _SAMPLE_S = 0.3, 2.0, 20.0
"""Seconds that a request waits for all files of a small run, for the first of a large one, and for one sample."""
_SETTLED_NS = 3 * 10**9
"""Age from which the time of a directory tells that nothing changed in it since."""
UNREADABLE = (OSError, KeyError, ValueError, pa.ArrowException, RunDirError)
Rows = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """A rollout file and its number in the index."""

    number: int
    kind: str
    step: int
    info: FileInfo


@dataclass(frozen=True, slots=True)
class _Damaged:
    """A file that could not be read, and when."""

    info: FileInfo
    note: str
    at: float


class RunIndex:
    """Index of the rollouts of one run."""

    def __init__(self, files: RunFiles, store: Path) -> None:
        """`store` is a new file for the beginnings of responses."""
        self.files = files
        self.rollouts = Index()
        self.snippets = Snippets(files, store)
        self.indexed: dict[int, IndexedFile] = {}
        """Files in the index, by number."""
        self.total = 0
        """Number of rollout files of the run."""
        self.changed = Condition()
        """Notified after every change of the index."""
        self.trouble = ""
        self._damaged: dict[tuple[str, int], _Damaged] = {}
        self.at_once = _AT_ONCE[files.is_remote]
        self.readers = ThreadPoolExecutor(self.at_once, "index")
        """Threads that read `at_once` files."""
        self._numbers = 0
        self._seen_ns = -1
        self._began = 0.0
        self._stop = Event()
        self.is_current = False
        """Whether all files of the run are indexed."""
        self._thread = Thread(target=self._run, name=f"index {files.name}", daemon=True)

    @property
    def notes(self) -> list[str]:
        """Files that were skipped, with the reason; and why the directory cannot be read, if that is so."""
        return [*([self.trouble] if self.trouble else ()), *(each.note for each in list(self._damaged.values()))]

    def start(self) -> None:
        """Starts to index in the background."""
        self._began = time.monotonic()
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self.readers.shutdown()
        self.snippets.close()

    def wait(self, seconds: float) -> bool:
        """Waits until all files are indexed; returns whether they are."""
        with self.changed:
            return self.changed.wait_for(lambda: self.is_current, seconds)

    def wait_for_first(self) -> None:
        """Waits, for a moment, until there is something to show."""
        with self.changed:
            self.changed.wait_for(lambda: self.is_current, max(0.0, self._began + _ALL_S - time.monotonic()))
            self.changed.wait_for(lambda: self.is_current or bool(self.indexed), _FIRST_S)

    def wait_for(self, kind: str, step: int) -> None:
        """Waits, for a moment, until a file is indexed: an address of a sample may be opened right after the start."""

        def is_there() -> bool:
            return self.is_current or any((each.kind, each.step) == (kind, step) for each in self.indexed.values())

        with self.changed:
            self.changed.wait_for(is_there, _SAMPLE_S)

    def newest_first(self) -> list[IndexedFile]:
        """Files in the index, the newest steps first."""
        return sorted(self.indexed.values(), key=lambda each: (-each.step, each.kind))

    def _run(self) -> None:
        while not self._stop.is_set():
            pause = _POLL_S[self.files.is_remote]
            try:
                self.update()
                if not self._fill_snippets():
                    pause = 0.0
            except RunDirError as error:  # the directory cannot be read for now, such as S3 without a network
                self.trouble = str(error)
            except Exception:  # a mistake of ours must not end the index
                logger.exception("cannot index %s; please report this", self.files.location)
            else:
                self.trouble = ""
            self._stop.wait(pause)

    def update(self) -> None:
        """Brings the index up to date with the directory."""
        if not self._may_have_changed():
            return
        found = self.files.rollouts()
        self.total = len(found)
        known = {(each.kind, each.step): each for each in self.indexed.values()}
        gone = [each.number for key, each in known.items() if found.get(key) != each.info]
        if gone:
            for kind in {self.indexed[number].kind for number in gone}:
                self.rollouts.delete(kind, [number for number in gone if self.indexed[number].kind == kind])
            self.indexed = {number: each for number, each in self.indexed.items() if number not in gone}
            self.snippets.forget(gone)
            self._notify()
        self._damaged = {
            key: each
            for key, each in self._damaged.items()
            if found.get(key) == each.info and not (self.files.is_remote and time.monotonic() - each.at > _RETRY_S)
        }
        left = {(each.kind, each.step) for each in self.indexed.values()} | self._damaged.keys()
        new = sorted((key for key in found if key not in left), key=lambda key: (-key[1], key[0]))
        self._add(new, found)
        if not self._stop.is_set():
            self.is_current = True
            self._notify()

    def _may_have_changed(self) -> bool:
        """Reports whether a look at the files is worth it: a local directory has a time, which every file changes."""
        if self.files.is_remote:
            return True
        folder = self.files.info("rollouts")
        changed = folder.modified_ns if folder else 0
        if changed == self._seen_ns:
            return False
        self._seen_ns = changed if time.time_ns() - changed > _SETTLED_NS else -1
        return True

    def _add(self, keys: list[tuple[str, int]], found: dict[tuple[str, int], FileInfo]) -> None:
        batch: list[tuple[IndexedFile, Rows]] = []
        began = time.monotonic()
        for first in range(0, len(keys), self.at_once):
            if self._stop.is_set():
                return
            self.is_current = False
            files = [self._numbered(key, found[key]) for key in keys[first : first + self.at_once]]
            read = zip(files, self.readers.map(self._read, files), strict=True)
            batch += [(file, rows) for file, rows in read if rows is not None]
            if first == 0 or time.monotonic() - began > _BATCH_S:
                self._insert(batch)
                batch, began = [], time.monotonic()
        self._insert(batch)

    def _numbered(self, key: tuple[str, int], info: FileInfo) -> IndexedFile:
        self._numbers += 1
        return IndexedFile(self._numbers, *key, info)

    def _read(self, file: IndexedFile) -> Rows | None:
        try:
            with self.files.open_parquet(file.info.name) as opened:
                return read_rows(opened, self.rollouts.names, file.number, file.step)
        except FileNotFoundError:  # a rewind deleted it meanwhile
            return None
        except UNREADABLE as error:
            note = f"{self.files.location}/{file.info.name} is damaged: {str(error).splitlines()[0]}"
            self._damaged[file.kind, file.step] = _Damaged(file.info, note, time.monotonic())
            return None

    def _insert(self, batch: list[tuple[IndexedFile, Rows]]) -> None:
        for kind in {file.kind for file, _ in batch}:
            self.rollouts.insert(kind, [rows for file, rows in batch if file.kind == kind])
        if batch:
            self.indexed = self.indexed | {file.number: file for file, _ in batch}
            self._notify()

    def _fill_snippets(self) -> bool:
        """Reads the beginnings of responses ahead, where that costs no transfer. Returns whether all are read: it stops
        after a while, to look for new files."""
        end = time.monotonic() + _POLL_S[False]
        for file in () if self.files.is_remote else self.newest_first():
            if self._stop.is_set() or time.monotonic() > end:
                return False
            self.snippets.load(file.number, file.info.name)
        return True

    def _notify(self) -> None:
        with self.changed:
            self.changed.notify_all()
