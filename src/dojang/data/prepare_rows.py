"""Converts a published dataset to Parquet rows (rows.py), one part at a time.

    OUTPUT/train/part-00000.parquet ...    the problems
    OUTPUT/report.json                     number of problems kept, and of rows dropped by reason
    OUTPUT/progress.json                   until finished: the position, to resume from

Each part is written atomically, then counted. Memory holds one part, and the statements of all problems: at the end,
training problems that overlap with the test split or with other held-out sets are dropped.
"""

import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from dojang.core.errors import DataError
from dojang.core.section import Section
from dojang.data.decontaminate import overlapping, statements
from dojang.data.readers import File
from dojang.data.rows import hash_fraction, to_row
from dojang.data.splits import split_names
from dojang.types import Problem

__all__ = ["SCHEMA", "Dataset", "KnownAnswers", "Report", "Unusable", "make_problem", "prepare", "split_of"]

SCHEMA = pa.schema(
    {
        "data_source": pa.string(),
        "prompt": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
        "ability": pa.string(),
        "reward_model": pa.struct({"style": pa.string(), "ground_truth": pa.string()}),
        "extra_info": pa.struct(
            {"id": pa.string(), "split": pa.string(), "index": pa.int64(), "tier": pa.string(), "row": pa.int64()}
        ),
    }
)
_PART, _PART_BYTES = 2048, 1 << 26
"""Maximum rows and bytes of one part."""
_ROW_GROUP = 256


class Unusable(Exception):
    """A row cannot become a problem. The message is the reason, equal for all such rows."""


@dataclass(frozen=True, slots=True)
class KnownAnswers:
    """Known-good and known-wrong answers of a row: programs in the problem's language, or worked solutions. For `dojang
    data audit`; they never become part of a problem."""

    good: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()


class Dataset(Section):
    """Converter of a published dataset."""

    ability: ClassVar[str] = "code"
    evaluation_only: ClassVar[bool] = False
    """Whether all rows are in the test split."""

    def split(self, file: str, row: Mapping[str, Any]) -> str:
        """Returns the split of a row. Raises Unusable if it has none."""
        return "test" if self.evaluation_only else split_of(file)

    def problem(self, row: Mapping[str, Any], where: str) -> Problem:
        """Returns the problem of a row. Raises Unusable, or KeyError for a row of another layout."""
        raise NotImplementedError

    def known(self, row: Mapping[str, Any]) -> KnownAnswers:
        """Returns the known answers of a row."""
        return KnownAnswers()


@dataclass
class Report:
    """Counts of a preparation."""

    read: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    """Problems by split."""
    tiers: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    """Dropped rows by reason."""
    rows: Counter[str] = field(default_factory=Counter)
    """Rows of each published split, kept or dropped."""
    overlap: list[dict[str, Any]] | None = None
    """Training problems that overlap with a held-out set: id, set, and share of the statement. None: not checked."""
    multiple_answers: list[str] = field(default_factory=list)
    """Ids of training problems that may have several correct answers."""

    def as_json(self) -> dict[str, Any]:
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in vars(self).items()}


def split_of(file: str) -> str:
    """Returns the split named by a file, or else by its directories, innermost first."""
    found = split_names(file)
    if len(found) != 1:
        raise Unusable("its file name has two splits" if found else "its file name has no split")
    return found.pop()


def prepare(
    dataset: Dataset,
    files: Sequence[File],
    output: Path,
    *,
    held_out: float = 0.0,
    against: Mapping[str, Sequence[Problem]] | None = None,
    keep_overlap: bool = False,
    on_progress: Callable[[int, int], None],
    suspected: Callable[[Problem], bool] = lambda problem: False,
) -> Report:
    """Prepares all rows of the files.

    `on_progress` gets the numbers of files and rows read. `held_out` is the share of training problems that becomes the
    test split, by a hash of their ids. Training problems that overlap with the test split or with a set of `against`
    are dropped, or with `keep_overlap` only reported. Training problems that are `suspected` of several correct answers
    are kept and reported.
    """
    against = against or {}
    files = [file for file in files if not Path(file.path).is_relative_to(output.resolve())]
    progress = _Progress(output, _identity(dataset, files, held_out, sorted(against), keep_overlap))
    try:
        _read_all(dataset, files, progress, held_out, on_progress, suspected)
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
    on_progress: Callable[[int, int], None],
    suspected: Callable[[Problem], bool],
) -> None:
    while progress.file < len(files):
        file = files[progress.file]
        parts, read, size, ended = defaultdict[str, list[dict[str, Any]]](list), 0, 0, True
        for number, row in file.rows(progress.row):
            read += 1
            place = progress.count_row(dataset, file, row)
            try:
                split, problem = make_problem(dataset, file, row, number)
                progress.add_id(problem.id)
                if split == "train" and hash_fraction(problem.id) < held_out:
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
        on_progress(progress.file, progress.report.read)


def _written(problem: Problem, **about: Any) -> dict[str, Any]:
    row = to_row(problem, **about)
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Unusable("its text is not Unicode") from None
    return row


def make_problem(dataset: Dataset, file: File, row: Mapping[str, Any], number: int) -> tuple[str, Problem]:
    """Returns the split and the problem of a row. Raises Unusable, or DataError for a row of another dataset."""
    if row.keys() >= {"data_source", "prompt", "reward_model"}:
        raise DataError(already_prepared(file.path, file.root))
    try:
        return dataset.split(file.label, row), dataset.problem(row, f"{file.name}/{number}")
    except KeyError as error:
        raise DataError(
            f"{file.path}, row {number}: it has no {error}, only {', '.join(map(str, list(row)[:12]))}; this is "
            "another dataset, or an unknown layout of it. To train on custom rows, use data.name=files"
        ) from error
    except (TypeError, ValueError, AttributeError, SyntaxError):
        raise Unusable("one of its fields has the wrong type") from None


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
    """Returns the settings and files that identify a preparation."""
    settings = {
        **dataset.model_dump(mode="json"),
        "held_out": held_out,
        "against": list(against),
        "keep_overlap": keep_overlap,
    }
    given = [[each.path, each.size] for each in files]
    return {"dataset": type(dataset).__name__, "settings": settings, "files": given}


class _Progress:
    """State of a preparation, saved in the output directory."""

    def __init__(self, output: Path, identity: dict[str, Any]) -> None:
        self._output, self._identity = output, identity
        self._state = output / "progress.json"
        self.file = self.row = 0
        self._parts = Counter[str]()
        self.report = Report()
        self._ids: set[str] = set()
        self._made = not output.exists()
        if self._state.is_file():
            self._load()
        elif output.exists() and (not output.is_dir() or any(output.iterdir())):
            raise DataError(f"{output} is not empty; choose another --output, or remove it to start over")
        else:
            try:
                self._output.mkdir(parents=True, exist_ok=True)
                self._save()
            except OSError as error:
                raise DataError(f"--output {output} cannot be written: {error.strerror}; choose another") from error

    def _load(self) -> None:
        try:
            state = json.loads(self._state.read_text())
        except ValueError:
            raise DataError(f"{self._state} is damaged; remove {self._output} to start over") from None
        if state["identity"] != self._identity:
            raise DataError(
                f"{self._output} holds an unfinished preparation of other files or with other settings; give the same "
                "ones to resume it, or remove it"
            )
        self.file, self.row, self._parts = state["file"], state["row"], Counter(state["parts"])
        saved = state["report"]
        kept, tiers, dropped, rows = (Counter[str](saved[name]) for name in ("kept", "tiers", "dropped", "rows"))
        self.report = Report(saved["read"], kept, tiers, dropped, rows, saved["overlap"], saved["multiple_answers"])
        for split, count in self._parts.items():
            for part in range(count):
                infos = pq.read_table(self._part(split, part), columns=["extra_info"]).column("extra_info")
                self._ids.update(info["id"] for info in infos.to_pylist())

    def forget_if_empty(self) -> None:
        """Removes the state of a preparation that has read nothing, so that it does not block the next one."""
        if not self.report.read:
            self._state.unlink(missing_ok=True)
            self._remove_directory()

    def _remove_directory(self) -> None:
        if self._made:
            with suppress(OSError):  # something else is in it
                self._output.rmdir()

    def count_row(self, dataset: Dataset, file: File, row: Mapping[str, Any]) -> int | None:
        """Returns the position of a row in its published split; None without a split."""
        try:
            split = dataset.split(file.label, row)
        except (Unusable, KeyError, TypeError, ValueError):
            return None
        self.report.rows[split] += 1
        return self.report.rows[split] - 1

    def add_id(self, name: str) -> None:
        """Raises Unusable if the id is a duplicate."""
        if name in self._ids:
            raise Unusable("its id is a duplicate")
        self._ids.add(name)

    def advance(self, made: Mapping[str, Sequence[Mapping[str, Any]]], read: int, *, ended: bool) -> None:
        """Writes a part and saves the position; `ended`: the file is finished."""
        for split, rows in made.items():
            self._write_part(self._part(split, self._parts[split]), pa.Table.from_pylist(list(rows), SCHEMA))
            self._parts[split] += 1
        self.report.read += read
        self.file, self.row = (self.file + 1, 0) if ended else (self.file, self.row + read)
        self._save()

    def check_overlap(self, against: Mapping[str, Sequence[Problem]], *, keep: bool) -> None:
        """Finds training problems that overlap with held-out sets, and drops them unless `keep`. Decided once: the
        decision is saved before any part is rewritten."""
        if self.report.overlap is None:
            own = {f"the {split} split": self._statements(split) for split in ("test", "validation")}
            train = self._statements("train")
            self.report.overlap = overlapping(train, {**own, **against})
            if not keep:
                self._count_dropped(train)
            self._save()
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

    def _save(self) -> None:
        state = {"identity": self._identity, "file": self.file, "row": self.row, "parts": self._parts}
        self._write(self._state, {**state, "report": self.report.as_json()})

    def finish(self) -> Report:
        if not self.report.kept:
            self._state.unlink()
            self._remove_directory()
            why = "; ".join(f"{count} x {reason}" for reason, count in self.report.dropped.most_common(5))
            raise DataError(f"none of {self.report.read} rows could be used ({why or 'the files are empty'})")
        self._write(self._output / "report.json", {**self._identity, **self.report.as_json()})
        self._state.unlink()
        return self.report

    @staticmethod
    def _write(path: Path, value: object) -> None:
        passing = path.with_suffix(f".{os.getpid()}")
        passing.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
        passing.replace(path)
