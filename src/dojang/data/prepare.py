"""A dataset as published -> Parquet rows (rows.py), a part at a time.

    OUTPUT/train/part-00000.parquet ...    the problems
    OUTPUT/report.json                     how many were kept, and why others were dropped
    OUTPUT/progress.json                   until it is finished: how far it is, so that it can be taken up again

A part is written whole or not at all, and counted after that. Memory is bounded by one part.
"""

import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from dojang.data.reading import File
from dojang.data.rows import share_of, to_row
from dojang.errors import DataError
from dojang.types import Problem

__all__ = ["Dataset", "Report", "Unusable", "prepare", "split_of"]

SCHEMA = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
        (
            "extra_info",
            pa.struct([("id", pa.string()), ("split", pa.string()), ("index", pa.int64()), ("tier", pa.string())]),
        ),
    ]
)
_PART = 2048
"""Rows read for one part."""
_SPLITS = {"train": "train", "valid": "validation", "val": "validation", "dev": "validation", "test": "test"}


class Unusable(Exception):
    """No problem can be made of a row; says why, in words that are the same for all such rows."""


class Dataset(Protocol):
    """What a dataset's file knows about it."""

    ability: ClassVar[str]

    def split(self, file: str, row: Mapping[str, Any]) -> str:
        """Where a row belongs; Unusable if nowhere."""

    def problem(self, row: Mapping[str, Any], where: str) -> Problem:
        """What a row poses; Unusable, or KeyError for a row of another layout."""


@dataclass
class Report:
    """What became of the rows."""

    read: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    """Problems of each split."""
    tiers: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    """Rows, by why."""

    def as_json(self) -> dict[str, Any]:
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in vars(self).items()}


def split_of(file: str) -> str:
    """What a file's name, or else a folder's, says."""
    for part in reversed(Path(file).parts):
        for word, split in _SPLITS.items():
            if part.lower().startswith(word) or f"{word}." in part.lower() or f"_{word}" in part.lower():
                return split
    raise Unusable("its file says nothing of a split")


def prepare(
    dataset: Dataset, files: Sequence[File], output: Path, *, held_out: float = 0.0, tell: Callable[[int, int], None]
) -> Report:
    """All rows of the files. `tell` is told how many files and rows have been read; `held_out` is a share of the
    training problems that becomes the test split, by their names."""
    progress = _Progress(output, _identity(dataset, files, held_out))
    while not progress.finished(len(files)):
        file = files[progress.file]
        rows = _up_to(file.rows(progress.row), _PART)
        made = defaultdict[str, list[dict[str, Any]]](list)
        for number, row in rows:
            progress.report.read += 1
            try:
                split, problem = _made(dataset, file, row, number)
            except Unusable as why:
                progress.report.dropped[str(why)] += 1
                continue
            if split == "train" and share_of(problem.id) < held_out:
                split = "test"
            index = progress.report.kept[split]
            made[split].append(to_row(problem, ability=dataset.ability, split=split, index=index))
            progress.report.kept[split] += 1
            if problem.tier:
                progress.report.tiers[problem.tier] += 1
        progress.advance(made, len(rows))
        tell(progress.file, progress.report.read)
    return progress.finish()


def _made(dataset: Dataset, file: File, row: Mapping[str, Any], number: int) -> tuple[str, Problem]:
    try:
        return dataset.split(file.name, row), dataset.problem(row, f"{file.name}/{number}")
    except KeyError as error:
        raise DataError(
            f"{file.path}, row {number}: there is no {error}, but {', '.join(list(row)[:12])}; this is another "
            "dataset, or a layout of it that is not known"
        ) from error


def _up_to(rows: Iterator[tuple[int, dict[str, Any]]], count: int) -> list[tuple[int, dict[str, Any]]]:
    return [each for each, _ in zip(rows, range(count), strict=False)]


def _identity(dataset: Dataset, files: Sequence[File], held_out: float) -> dict[str, Any]:
    """What makes another preparation another one."""
    settings = {**getattr(dataset, "model_dump", dict)(mode="json"), "held_out": held_out}
    given = [[each.path, each.size] for each in files]
    return {"dataset": type(dataset).__name__, "settings": settings, "files": given}


class _Progress:
    """Where a preparation is, in the output directory."""

    def __init__(self, output: Path, identity: dict[str, Any]) -> None:
        self._output, self._identity = output, identity
        self._state = output / "progress.json"
        self.file = self.row = 0
        self._parts = Counter[str]()
        self.report = Report()
        if self._state.is_file():
            self._take_up()
        elif output.exists() and any(output.iterdir()):
            raise DataError(f"{output} is not empty; choose another --output, or remove it to prepare it anew")

    def _take_up(self) -> None:
        state = json.loads(self._state.read_text())
        if state["identity"] != self._identity:
            raise DataError(
                f"{self._output} has a preparation under way of other files or with other settings; give the same "
                "ones to go on with it, or remove it"
            )
        self.file, self.row, self._parts = state["file"], state["row"], Counter(state["parts"])
        told = state["report"]
        self.report = Report(told["read"], *(Counter(told[name]) for name in ("kept", "tiers", "dropped")))

    def finished(self, files: int) -> bool:
        return self.file >= files

    def advance(self, made: Mapping[str, Sequence[Mapping[str, Any]]], read: int) -> None:
        """A part has been read; if it is smaller than a part is, the file has ended."""
        for split, rows in made.items():
            folder = self._output / split
            folder.mkdir(parents=True, exist_ok=True)
            part = folder / f"part-{self._parts[split]:05}.parquet"
            pq.write_table(pa.Table.from_pylist(list(rows), SCHEMA), part.with_suffix(".new"))
            part.with_suffix(".new").replace(part)
            self._parts[split] += 1
        self.row += read
        if read < _PART:
            self.file, self.row = self.file + 1, 0
        self._output.mkdir(parents=True, exist_ok=True)
        self._write(
            self._state,
            {
                "identity": self._identity,
                "file": self.file,
                "row": self.row,
                "parts": self._parts,
                "report": self.report.as_json(),
            },
        )

    def finish(self) -> Report:
        if not self.report.kept:
            why = "; ".join(f"{count} x {reason}" for reason, count in self.report.dropped.most_common(5))
            raise DataError(f"not one of {self.report.read} rows could be used ({why or 'there are none'})")
        self._write(self._output / "report.json", {**self._identity, **self.report.as_json()})
        self._state.unlink()
        return self.report

    @staticmethod
    def _write(path: Path, value: object) -> None:
        passing = path.with_suffix(f".{os.getpid()}")
        passing.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
        passing.replace(path)
