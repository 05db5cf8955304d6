"""Journal of judged groups: survives a kill between two checkpoints.

    record: u32 size of the payload | u32 CRC-32 of the rest | i64 prompt index | u32 attempt | payload (group_codec)

Every record is flushed to disk before `append` returns. The journal ends at the first record that is not whole: groups
after it are sampled again. Only sampling work can be lost that way, never a state of the run.
"""

import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from dojang.core.run_dir import append_whole, disk_errors, write_atomic
from dojang.loop.group_codec import decode, encode
from dojang.types import Group, Problem

__all__ = ["Journal", "JournalEntry"]

_HEAD = struct.Struct("<IIqI")
_KEY = struct.Struct("<IqI")


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A judged group, and the attempt that sampled it."""

    group: Group
    attempt: int


class Journal:
    """Append-only file of groups. Methods block on the disk and may be called from any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        self._is_whole = False
        self.unreadable = 0
        """Whole records that the last replay could not decode, such as those of other training data."""

    def append(self, group: Group, *, attempt: int) -> None:
        """Writes a group to disk, whole or not at all. RunDirError if the disk is full."""
        self.append_all([JournalEntry(group, attempt)])

    def append_all(self, entries: Iterable[JournalEntry]) -> None:
        """Writes several groups and flushes them to disk together: flushing takes most of the time."""
        records = (_record(each.group.prompt_index, each.attempt, encode(each.group)) for each in entries)
        content = b"".join(records)
        with self._lock, disk_errors(self._path):
            self._repair()
            append_whole(self._path, content, sync=True)

    def replay(self, problem: Callable[[int], Problem]) -> Iterator[JournalEntry]:
        """Yields the groups in the order they were written; `problem` maps a prompt index to its problem. Truncates a
        torn end and skips groups that do not fit the run. A prompt may occur more than once."""
        with self._lock, disk_errors(self._path):
            self._repair()
        self.unreadable = 0
        for _, attempt, payload, _ in self._records():
            try:
                group = decode(payload, problem)
            except ValueError:
                self.unreadable += 1
                continue
            yield JournalEntry(group, attempt)

    def rewrite(self, keep: Callable[[int], bool]) -> None:
        """Keeps the groups of these prompts only, atomically. After a checkpoint: those that it does not hold."""

        def write(path: Path) -> None:
            with path.open("wb") as file:
                for index, attempt, payload, _ in self._records():
                    if keep(index):
                        file.write(_record(index, attempt, payload))

        with self._lock:
            write_atomic(self._path, write)

    def _repair(self) -> None:
        """Truncates the file after its last whole record, before the first append of this process; creates it."""
        if self._is_whole:
            return
        end = max((end for _, _, _, end in self._records()), default=0)
        if not self._path.exists():
            write_atomic(self._path, b"")
        elif end < self._path.stat().st_size:
            os.truncate(self._path, end)
        self._is_whole = True

    def _records(self) -> Iterator[tuple[int, int, bytes, int]]:
        """Prompt index, attempt, payload and end offset of every whole record, up to the first that is not."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            while len(head := file.read(_HEAD.size)) == _HEAD.size:
                count, checksum, index, attempt = _HEAD.unpack(head)
                if file.tell() + count > size:  # reading a corrupt size would allocate it
                    return
                payload = file.read(count)
                if len(payload) < count or checksum != _checksum(index, attempt, payload):
                    return
                yield index, attempt, payload, file.tell()


def _record(index: int, attempt: int, payload: bytes) -> bytes:
    return _HEAD.pack(len(payload), _checksum(index, attempt, payload), index, attempt) + payload


def _checksum(index: int, attempt: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(_KEY.pack(len(payload), index, attempt)))
