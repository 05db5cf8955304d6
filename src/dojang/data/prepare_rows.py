"""A dataset as published -> Parquet rows (rows.py), a part at a time.

    OUTPUT/train/part-00000.parquet ...    the problems
    OUTPUT/report.json                     how many were kept, and why others were dropped
    OUTPUT/progress.json                   until it is finished: how far it is, so that it can be taken up again

A part is written whole or not at all, and counted after that. Memory is bounded by one part, and by the statements
of all problems: in the end, training problems that are in the test split too, or in other held-out sets, are dropped.
"""

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from dojang.core.errors import DataError
from dojang.data.decontaminate import overlapping, statements
from dojang.data.readers import File
from dojang.data.rows import share_of, to_row
from dojang.types import Problem

__all__ = ["SCHEMA", "Dataset", "Known", "Report", "Unusable", "made", "prepare", "split_of"]

SCHEMA = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
        (
            "extra_info",
            pa.struct(
                [
                    ("id", pa.string()),
                    ("split", pa.string()),
                    ("index", pa.int64()),
                    ("tier", pa.string()),
                    ("row", pa.int64()),
                ]
            ),
        ),
    ]
)
_PART, _PART_BYTES = 2048, 1 << 26
"""Rows read for one part, and what they may come to."""
_ROW_GROUP = 256
_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("valid", "validation", "val", "dev"), "validation"),
    "test": "test",
}
"""Words in names of files."""


class Unusable(Exception):
    """No problem can be made of a row; says why, in words that are the same for all such rows."""


@dataclass(frozen=True, slots=True)
class Known:
    """Answers whose worth a row tells: programs in the problem's language, or worked solutions. For `dojang data
    audit`; they never get into a problem."""

    good: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()


class Dataset(Protocol):
    """What a dataset's file knows about it."""

    ability: ClassVar[str]

    def split(self, file: str, row: Mapping[str, Any]) -> str:
        """Where a row belongs; Unusable if nowhere."""

    def problem(self, row: Mapping[str, Any], where: str) -> Problem:
        """What a row poses; Unusable, or KeyError for a row of another layout."""

    def known(self, row: Mapping[str, Any]) -> Known:
        """The answers a row has."""


@dataclass
class Report:
    """What became of the rows."""

    read: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    """Problems of each split."""
    tiers: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    """Rows, by why."""
    rows: Counter[str] = field(default_factory=Counter)
    """Rows of each published split, whatever became of them."""
    overlap: list[dict[str, Any]] | None = None
    """Training problems that a held-out set has, too: id, where, and the share of the statement. None: not looked."""
    multiple_answers: list[str] = field(default_factory=list)
    """Ids of training problems that may have several right answers."""

    def as_json(self) -> dict[str, Any]:
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in vars(self).items()}


def split_of(file: str) -> str:
    """What a file's name says, or else a folder's, from the inmost on."""
    for part in reversed(Path(file).parts):
        found = {_SPLITS[word] for word in re.split(r"[^a-z]+", part.lower()) if word in _SPLITS}
        if len(found) > 1:
            raise Unusable("its file says two splits")
        if found:
            return found.pop()
    raise Unusable("its file says nothing of a split")


def prepare(
    dataset: Dataset,
    files: Sequence[File],
    output: Path,
    *,
    held_out: float = 0.0,
    against: Mapping[str, Sequence[Problem]] | None = None,
    keep_overlap: bool = False,
    tell: Callable[[int, int], None],
    suspected: Callable[[Problem], bool] = lambda problem: False,
) -> Report:
    """All rows of the files. `tell` is told how many files and rows have been read; `held_out` is a share of the
    training problems that becomes the test split, by their names. Training problems that overlap with the test split
    or with a set of `against` are dropped, or with `keep_overlap` only reported. Training problems that are
    `suspected` of several right answers are kept and reported."""
    against = against or {}
    files = [file for file in files if not Path(file.path).is_relative_to(output.resolve())]
    progress = _Progress(output, _identity(dataset, files, held_out, sorted(against), keep_overlap))
    try:
        _read_all(dataset, files, progress, held_out, tell, suspected)
    except DataError:
        progress.forget_if_empty()
        raise
    progress.check_overlap(against, keep=keep_overlap)
    return progress.finish()


def _read_all(
    dataset: Dataset,
    files: Sequence[File],
    progress: "_Progress",
    held_out: float,
    tell: Callable[[int, int], None],
    suspected: Callable[[Problem], bool],
) -> None:
    while not progress.finished(len(files)):
        file = files[progress.file]
        parts, read, size, ended = defaultdict[str, list[dict[str, Any]]](list), 0, 0, True
        for number, row in file.rows(progress.row):
            read += 1
            place = progress.count_row(dataset, file, row)
            try:
                split, problem = made(dataset, file, row, number)
                progress.meet(problem.id)
                if split == "train" and share_of(problem.id) < held_out:
                    split = "test"
                index = progress.report.kept[split]
                parts[split].append(_written(problem, ability=dataset.ability, split=split, index=index, row=place))
            except Unusable as why:
                progress.report.dropped[str(why)] += 1
                continue
            progress.report.kept[split] += 1
            if split == "train" and suspected(problem):
                progress.report.multiple_answers.append(problem.id)
            progress.report.tiers.update([problem.tier] if problem.tier else [])
            size += len(parts[split][-1]["reward_model"]["ground_truth"])
            if read >= _PART or size >= _PART_BYTES:
                ended = False
                break
        progress.advance(parts, read, ended=ended)
        tell(progress.file, progress.report.read)


def _written(problem: Problem, **about: Any) -> dict[str, Any]:
    row = to_row(problem, **about)
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Unusable("its text is not Unicode") from None
    return row


def made(dataset: Dataset, file: File, row: Mapping[str, Any], number: int) -> tuple[str, Problem]:
    """The split and the problem of a row; Unusable if there is none, DataError for another dataset's."""
    if row.keys() >= {"data_source", "prompt", "reward_model"}:
        raise DataError(already_prepared(file.path, file.root))
    try:
        return dataset.split(file.label, row), dataset.problem(row, f"{file.name}/{number}")
    except KeyError as error:
        raise DataError(
            f"{file.path}, row {number}: there is no {error}, but {', '.join(map(str, list(row)[:12]))}; this is "
            "another dataset, or a layout of it that is not known. The rows of your own files can be trained on with "
            "data.name=files"
        ) from error
    except (TypeError, ValueError, AttributeError, SyntaxError):
        raise Unusable("a field of it is of another kind than it should be") from None


def already_prepared(path: str, root: str) -> str:
    """Explains how to use rows that are in the prepared layout."""
    folder = Path(root).parent if root == path else Path(root)
    return (
        f"{path} already holds prepared rows (data_source, prompt, reward_model) and needs no preparation; nothing was "
        f"written. Train on them with data.name=prepared data.path={folder if folder.exists() else 'DIR'}, a local "
        "directory with train.parquet and test.parquet (or .jsonl), or with directories train and test"
    )


def _identity(
    dataset: Dataset, files: Sequence[File], held_out: float, against: Sequence[str], keep_overlap: bool
) -> dict[str, Any]:
    """What makes another preparation another one."""
    settings = {
        **getattr(dataset, "model_dump", dict)(mode="json"),
        "held_out": held_out,
        "against": list(against),
        "keep_overlap": keep_overlap,
    }
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
        self._met: set[str] = set()
        self._made = not output.exists()
        if self._state.is_file():
            self._take_up()
        elif output.exists() and (not output.is_dir() or any(output.iterdir())):
            raise DataError(f"{output} is not empty; choose another --output, or remove it to prepare it anew")
        else:
            try:
                self._output.mkdir(parents=True, exist_ok=True)
                self._keep()
            except OSError as error:
                raise DataError(f"--output {output} cannot be written: {error.strerror}; choose another") from error

    def _take_up(self) -> None:
        try:
            state = json.loads(self._state.read_text())
        except ValueError:
            raise DataError(f"{self._state} is damaged; remove {self._output} to prepare it anew") from None
        if state["identity"] != self._identity:
            raise DataError(
                f"{self._output} has a preparation under way of other files or with other settings; give the same "
                "ones to go on with it, or remove it"
            )
        self.file, self.row, self._parts = state["file"], state["row"], Counter(state["parts"])
        told = state["report"]
        kept, tiers, dropped, rows = (Counter[str](told[name]) for name in ("kept", "tiers", "dropped", "rows"))
        self.report = Report(told["read"], kept, tiers, dropped, rows, told["overlap"], told["multiple_answers"])
        for split, count in self._parts.items():
            for part in range(count):
                infos = pq.read_table(self._part(split, part), columns=["extra_info"]).column("extra_info")
                self._met.update(info["id"] for info in infos.to_pylist())

    def forget_if_empty(self) -> None:
        """Removes the state of a preparation that has read nothing, so that it does not block another try."""
        if not self.report.read:
            self._state.unlink(missing_ok=True)
            self._remove_directory()

    def _remove_directory(self) -> None:
        if self._made:
            with suppress(OSError):  # something else is in it
                self._output.rmdir()

    def finished(self, files: int) -> bool:
        return self.file >= files

    def count_row(self, dataset: Dataset, file: File, row: Mapping[str, Any]) -> int | None:
        """Position of a row in its published split; None if it belongs to none."""
        try:
            split = dataset.split(file.label, row)
        except (Unusable, KeyError, TypeError, ValueError):
            return None
        self.report.rows[split] += 1
        return self.report.rows[split] - 1

    def meet(self, name: str) -> None:
        """Unusable if there was a problem of this name."""
        if name in self._met:
            raise Unusable("there is one of its name already")
        self._met.add(name)

    def advance(self, made: Mapping[str, Sequence[Mapping[str, Any]]], read: int, *, ended: bool) -> None:
        """A part has been read, and that may have been the end of the file."""
        for split, rows in made.items():
            self._write_part(self._part(split, self._parts[split]), pa.Table.from_pylist(list(rows), SCHEMA))
            self._parts[split] += 1
        self.report.read += read
        self.file, self.row = (self.file + 1, 0) if ended else (self.file, self.row + read)
        self._keep()

    def check_overlap(self, against: Mapping[str, Sequence[Problem]], *, keep: bool) -> None:
        """Looks for training problems in held-out sets, and drops them unless `keep`. Decided once: what was decided is
        in the state before any part is written anew."""
        if self.report.overlap is None:
            own = {f"the {split} split": self._statements(split) for split in ("test", "validation")}
            train = self._statements("train")
            self.report.overlap = overlapping(train, {**own, **against})
            if not keep:
                self._count_dropped(train)
            self._keep()
        if not keep and self.report.overlap:
            self._drop({each["id"] for each in self.report.overlap})

    def _statements(self, split: str) -> list[Problem]:
        return [problem for part in range(self._parts[split]) for problem in statements(self._part(split, part))]

    def _count_dropped(self, train: Sequence[Problem]) -> None:
        found = {each["id"]: each["in"] for each in self.report.overlap or ()}
        self.report.multiple_answers = [each for each in self.report.multiple_answers if each not in found]
        for problem in train:
            if problem.id in found:
                self.report.kept["train"] -= 1
                self.report.tiers.subtract([problem.tier] if problem.tier else [])
                self.report.dropped[f"it overlaps with a problem of {found[problem.id]}"] += 1

    def _drop(self, names: Collection[str]) -> None:
        for number in range(self._parts["train"]):
            part = self._part("train", number)
            table = pq.read_table(part)
            kept = [info["id"] not in names for info in table.column("extra_info").to_pylist()]
            if not all(kept):
                self._write_part(part, table.filter(pa.array(kept, pa.bool_())))

    @staticmethod
    def _write_part(part: Path, table: pa.Table) -> None:
        part.parent.mkdir(exist_ok=True)
        new = part.with_suffix(".new")
        pq.write_table(table, new, row_group_size=_ROW_GROUP)
        new.replace(part)

    def _part(self, split: str, number: int) -> Path:
        return self._output / split / f"part-{number:05}.parquet"

    def _keep(self) -> None:
        state = {"identity": self._identity, "file": self.file, "row": self.row, "parts": self._parts}
        self._write(self._state, {**state, "report": self.report.as_json()})

    def finish(self) -> Report:
        if not self.report.kept:
            self._state.unlink()
            self._remove_directory()
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
