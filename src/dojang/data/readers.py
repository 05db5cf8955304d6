"""Rows of datasets as they are published, one after the other: Parquet, JSON lines, JSON, CSV, also compressed.

From a file or a directory, from `s3://`, or from the Hugging Face hub by the dataset's id. Nothing is read whole but a
JSON file, which cannot be read otherwise.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from dojang.core.errors import DataError

__all__ = ["File", "find"]

_KINDS = re.compile(r"\.(parquet|jsonl|ndjson|json|csv)(\.gz|\.zst|\.bz2)?$")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(/[\w.-]+)*")
"""org/name, or a directory in it: org/name/subset."""
_ROWS = 64
_Reader = Callable[[int], Iterator[tuple[int, Any]]]


@dataclass(frozen=True, slots=True)
class File:
    """Something to read rows from."""

    path: str
    size: int
    _system: Any
    _stem: str
    """What all paths begin with."""

    @property
    def root(self) -> str:
        """The directory or file that was asked for."""
        return self._stem

    @property
    def name(self) -> str:
        """The path below what was asked for."""
        return self.path.removeprefix(self._stem).lstrip("/") or Path(self.path).name

    @property
    def label(self) -> str:
        """The same with the name of what was asked for, which may say what is in it."""
        return str(Path(Path(self._stem).name, self.name)) if self._stem != self.path else self.name

    def with_directory(self) -> "File":
        """The same file, named as if its directory had been asked for."""
        return replace(self, _stem=str(Path(self.path).parent))

    def rows(self, start: int = 0, columns: Sequence[str] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
        """From a row on, each with its number. `columns` limits what is read of Parquet files."""
        kind = _KINDS.search(self.path)
        assert kind is not None
        parquet: _Reader = partial(self._parquet, columns=columns)
        readers: dict[str, _Reader] = {"parquet": parquet, "json": self._json, "csv": self._csv}
        read = readers.get(kind[1], self._lines)
        try:
            for number, row in read(start):
                if not isinstance(row, dict):
                    raise DataError(f"{self.path}, row {number}: an object was expected, not {type(row).__name__}")
                yield number, row
        except (OSError, ValueError, pa.ArrowInvalid, csv.Error) as error:
            raise DataError(f"{self.path} cannot be read: {error}") from error

    def _parquet(self, start: int, columns: Sequence[str] | None) -> Iterator[tuple[int, Any]]:
        with self._system.open_input_file(self.path) as file:
            parquet, number = pq.ParquetFile(file), 0
            names = columns and [name for name in columns if name in parquet.schema_arrow.names]
            for group in range(parquet.num_row_groups):
                count = parquet.metadata.row_group(group).num_rows
                if number + count > start:
                    for batch in parquet.iter_batches(_ROWS, row_groups=[group], columns=names):
                        for at, row in enumerate(batch.to_pylist(), number):
                            if at >= start:
                                yield at, row
                        number += batch.num_rows
                else:
                    number += count

    def _lines(self, start: int) -> Iterator[tuple[int, Any]]:
        # Split at line feeds alone, not at the other characters that str.splitlines breaks at.
        lines = (line for line in self._text() if line.strip())
        for number, line in enumerate(lines):
            if number >= start:
                yield number, json.loads(line)

    def _json(self, start: int) -> Iterator[tuple[int, Any]]:
        with self._text() as text:
            found = json.load(text)
        rows = found if isinstance(found, list) else [found]
        yield from enumerate(rows[start:], start)

    def _csv(self, start: int) -> Iterator[tuple[int, Any]]:
        csv.field_size_limit(1 << 30)
        for number, row in enumerate(csv.DictReader(self._text())):
            if number >= start:
                yield number, row

    def _text(self) -> io.TextIOWrapper:
        stream = self._system.open_input_stream(self.path, compression="detect")
        return io.TextIOWrapper(io.BufferedReader(stream), encoding="utf-8-sig", newline="\n")


def find(where: str) -> list[File]:
    """The files there are, in the order of their names."""
    system, root = _place(where)
    try:
        about = system.get_file_info(root)
        if about.type is fs.FileType.NotFound:
            raise DataError(f"there is nothing at {where}; give a file, a directory, s3://..., or the id of a dataset")
        found = [about]
        if about.type is fs.FileType.Directory:
            found = system.get_file_info(fs.FileSelector(root, recursive=True))
    except DataError:
        raise
    except Exception as error:  # the hub's client raises many kinds
        hub = "" if not root.startswith("datasets/") else " (no such local path, so looked for on the Hugging Face hub)"
        raise DataError(f"{where} cannot be looked at{hub}: {error}") from error
    files = [
        File(each.path, each.size or 0, system, root)
        for each in sorted(found, key=lambda each: each.path)
        if each.is_file and _KINDS.search(each.path)
    ]
    if not files:
        raise DataError(f"{where} has no files to read: .parquet, .jsonl, .json or .csv, also with .gz")
    return files


def _place(where: str) -> tuple[Any, str]:
    path = Path(where).expanduser()
    if path.exists() or where.startswith((".", "/", "~")):
        return fs.LocalFileSystem(), str(path.resolve())
    if "://" in where:
        try:
            return fs.FileSystem.from_uri(where)  # type: ignore[no-any-return]
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"{where} is not understood: {error}") from error
    if _HUB_ID.fullmatch(where) and not _KINDS.search(where):
        from huggingface_hub import HfFileSystem

        return fs.PyFileSystem(fs.FSSpecHandler(HfFileSystem())), f"datasets/{where}"
    raise DataError(
        f"{where} does not exist, and is no s3://... or id of a dataset (org/name or org/name/subset) either"
    )
