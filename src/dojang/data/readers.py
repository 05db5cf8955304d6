"""Reads rows of datasets: Parquet, JSON lines, JSON, CSV, also compressed, and Arrow files of `save_to_disk`.

Reads from a file or directory, from `s3://` or `gs://`, or from the Hugging Face hub by dataset id. Streams all formats
except JSON, which is read whole.
"""

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from dojang.core.errors import DataError
from dojang.data.hub import open_hub
from dojang.data.in_memory import argument_of
from dojang.data.place import ACCEPTED, KINDS, hub_id

__all__ = ["File", "find"]

_NO_ROWS = re.compile(r"(^|/)(dataset_infos?\.json|dataset_dict\.json|state\.json|cache-[^/]*\.arrow|\.[^/]*)$")
"""Files without rows: those that the datasets library writes beside the rows, and hidden ones."""
_ROWS = 64


@dataclass(frozen=True, slots=True)
class File:
    """A file of rows."""

    path: str
    size: int
    _system: Any
    _stem: str
    """Common prefix of all paths."""
    hub_id: str = ""
    """Dataset id on the Hugging Face hub; empty for other files."""

    @property
    def root(self) -> str:
        """The requested directory or file."""
        return self._stem

    @property
    def name(self) -> str:
        """Path relative to the root."""
        return self.path.removeprefix(self._stem).lstrip("/") or Path(self.path).name

    @property
    def label(self) -> str:
        """Relative path with the name of the root, which may name a split."""
        return str(Path(Path(self._stem).name, self.name)) if self._stem != self.path else self.name

    def with_directory(self) -> "File":
        """Returns the same file with its directory as root."""
        return replace(self, _stem=str(Path(self.path).parent))

    def rows(self, start: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields rows with their numbers, from `start` on."""
        readers = {"parquet": self._parquet, "arrow": self._arrow, "json": self._json, "csv": self._csv}
        read = readers.get(self._kind, self._lines)
        try:
            for number, row in read(start):
                if not isinstance(row, dict):
                    raise DataError(
                        f"{self.position(number)}: a row is an object with columns, this is {type(row).__name__} "
                        f"{row!r:.60}"
                    )
                yield number, row
        except (OSError, ValueError, pa.ArrowInvalid, csv.Error) as error:
            raise DataError(f"{self.path} cannot be read: {error}") from error

    def position(self, number: int) -> str:
        """Describes where a row is, for errors: file and line, file and row, or the row of an argument in Python. Reads
        the file again up to the row."""
        if argument := argument_of(self.path):
            return f"row {number} of the {argument}"
        if self._kind in ("jsonl", "ndjson"):
            for row, (line, _) in enumerate(self._numbered_lines()):
                if row == number:
                    return f"{self.name}, line {line}"
        if self._kind == "csv":
            reader = csv.DictReader(self._text())
            for row, _ in enumerate(reader):
                if row == number:
                    return f"{self.name}, line {reader.line_num}"
        return f"{self.name}, row {number} (the first is 0)"

    @property
    def _kind(self) -> str:
        kind = KINDS.search(self.path)
        assert kind is not None
        return kind[1]

    def _parquet(self, start: int) -> Iterator[tuple[int, Any]]:
        with self._system.open_input_file(self.path) as file:
            parquet, number = pq.ParquetFile(file), 0
            for group in range(parquet.num_row_groups):
                count = parquet.metadata.row_group(group).num_rows
                if number + count > start:
                    for batch in parquet.iter_batches(_ROWS, row_groups=[group]):
                        for at, row in enumerate(batch.to_pylist(), number):
                            if at >= start:
                                yield at, row
                        number += batch.num_rows
                else:
                    number += count

    def _arrow(self, start: int) -> Iterator[tuple[int, Any]]:
        """Rows of the Arrow stream format, which `datasets.Dataset.save_to_disk` writes."""
        with self._system.open_input_stream(self.path, compression="detect") as file:
            number = 0
            for batch in pa.ipc.open_stream(file):
                for at, row in enumerate(batch.to_pylist(), number):
                    if at >= start:
                        yield at, row
                number += batch.num_rows

    def _lines(self, start: int) -> Iterator[tuple[int, Any]]:
        for number, (line, text) in enumerate(self._numbered_lines()):
            if number >= start:
                try:
                    yield number, json.loads(text)
                except json.JSONDecodeError as error:
                    what = f"{error.msg} at column {error.colno}"
                    raise DataError(f"{self.path}, line {line}: not JSON ({what}): {text.strip()[:60]!r}") from None

    def _numbered_lines(self) -> Iterator[tuple[int, str]]:
        """Lines that are not empty, with their numbers from 1."""
        # Split at line feeds only: str.splitlines also splits at other characters.
        return ((line, text) for line, text in enumerate(self._text(), 1) if text.strip())

    def _json(self, start: int) -> Iterator[tuple[int, Any]]:
        with self._text() as text:
            found = json.load(text)
        rows = found if isinstance(found, list) else [found]
        yield from enumerate(rows[start:], start)

    def _csv(self, start: int) -> Iterator[tuple[int, Any]]:
        csv.field_size_limit(1 << 30)
        reader = csv.DictReader(self._text())
        for number, row in enumerate(reader):
            if None in row:
                count = len(reader.fieldnames or ())
                raise DataError(
                    f"{self.path}, line {reader.line_num}: more values than the {count} columns; quote commas"
                )
            if number >= start:
                yield number, row

    def _text(self) -> io.TextIOWrapper:
        stream = self._system.open_input_stream(self.path, compression="detect")
        return io.TextIOWrapper(io.BufferedReader(stream), encoding="utf-8-sig", newline="\n")


def find(where: str) -> list[File]:
    """Returns the files at a path, s3:// address or hub id, sorted by name."""
    dataset = hub_id(where)
    try:
        system, root = open_hub(dataset) if dataset else _open(where)
        about = system.get_file_info(root)
        if about.type is fs.FileType.NotFound:
            raise DataError(f"{where} does not exist{' on the Hugging Face hub' * bool(dataset)}; give {ACCEPTED}")
        found = [about]
        if about.type is fs.FileType.Directory:
            listed = system.get_file_info(fs.FileSelector(root, recursive=True))
            found = [each for each in listed if not _NO_ROWS.search(each.path)]
    except DataError:
        raise
    except Exception as error:  # the hub's client raises many kinds
        hub = " (no such local path, so looked for on the Hugging Face hub)" * bool(dataset)
        raise DataError(f"{where} cannot be listed{hub}: {error}") from error
    files = [
        File(each.path, each.size or 0, system, root, dataset)
        for each in sorted(found, key=lambda each: each.path)
        if each.is_file and KINDS.search(each.path)
    ]
    if not files:
        raise DataError(
            f"{where} has no files to read: .parquet, .jsonl, .json or .csv, also with .gz, or .arrow of save_to_disk"
        )
    return files


def _open(where: str) -> tuple[Any, str]:
    if "://" not in where:
        return fs.LocalFileSystem(), str(Path(where).expanduser().resolve())
    # The client of Google Cloud Storage retries for a quarter of an hour by itself.
    quick = "?retry_limit_seconds=10" if where.startswith("gs://") and "?" not in where else ""
    try:
        return fs.FileSystem.from_uri(where + quick)  # type: ignore[no-any-return]
    except pa.ArrowInvalid as error:
        raise DataError(f"{where} is not a valid address: {error}; give {ACCEPTED}") from error
