"""Reads a run directory, or a run in S3: configuration, metrics and rollouts, also while the run goes on.

Rollouts are one Parquet file per step. They are read file by file and filtered while they are read, so a look-up in a
million samples takes little memory, and text is only decoded when it is asked for.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import yaml
from numpy.typing import NDArray

from dojang.core.errors import RunDirError
from dojang.core.rollout_schema import ROLLOUT_COLUMNS, rollout_schema
from dojang.core.run_dir import RunDir
from dojang.core.run_files import RunFiles

__all__ = ["COLUMNS", "SHORT_COLUMNS", "RunRecords", "response_lengths"]

COLUMNS = tuple(ROLLOUT_COLUMNS)
LONG = ("question", "prompt", "response", "tokens", "mask", "logprobs", "detail", "spans", "tests", "turns")
"""Columns that hold nearly all bytes of a file."""
SHORT_COLUMNS = tuple(name for name in COLUMNS if name not in LONG)
"""Columns read by default: numbers and names."""
BATCH_ROWS = 1024
LENGTH = "response_length"
UNREADABLE = (OSError, pa.ArrowException)
"""Errors of a file that is damaged, not Parquet, or has columns of other types."""


class RunRecords:
    """Read-only records of a run. Nothing is kept but the configuration, so a run that goes on can be read again."""

    def __init__(self, path: Path | str) -> None:
        self.files = RunFiles(path)
        self.notes: list[str] = []
        """Files that were skipped because they could not be read, with the reason."""
        if self.files.info("config.yaml") is None:
            raise RunDirError(_no_run(self.files))

    @property
    def path(self) -> str:
        """Directory or address of the run."""
        return self.files.location

    @cached_property
    def config(self) -> dict[str, Any]:
        """Resolved configuration (config.yaml), as plain values."""
        name = "config.yaml"
        try:
            found = yaml.safe_load(self.files.read(name) or b"")
        except (ValueError, yaml.YAMLError) as error:
            raise RunDirError(f"cannot read {self.path}/{name}: {error}") from error
        if not isinstance(found, dict):
            raise RunDirError(f"{self.path}/{name} is no configuration; copy it again from the run")
        return found

    @property
    def run(self) -> dict[str, Any]:
        """Name of the recipe and overrides (run.json); empty if the file is missing."""
        return self._read_object("run.json") or {}

    @property
    def summary(self) -> dict[str, Any] | None:
        """How the run ended (summary.json); None while it goes on, or after it was killed."""
        return self._read_object("summary.json")

    def metrics(self) -> list[dict[str, Any]]:
        """Metrics, one dict per step or evaluation, each with its step. Skips a line that is still being written."""
        rows = []
        for number, line in enumerate((self.files.read("metrics.jsonl") or b"").splitlines(keepends=True), 1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if isinstance(row, dict) and isinstance(row.get("step"), int):
                rows.append(row)
            elif line.endswith(b"\n"):  # without a line break it is still being written
                self._note(f"line {number} of {self.path}/metrics.jsonl is damaged")
        return rows

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the rollouts."""
        return COLUMNS

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of rollouts there are: train, test, and test-NAME for each benchmark."""
        return tuple(dict.fromkeys(kind for kind, _ in self.files.rollouts()))

    def steps(self, kind: str = "train") -> list[int]:
        """Steps that have rollouts of this kind, in order."""
        return [step for each, step in self.files.rollouts() if each == kind]

    def rollouts(
        self,
        kind: str = "train",
        steps: Iterable[int] | None = None,
        columns: Sequence[str] = SHORT_COLUMNS,
        where: "pc.Expression | None" = None,
    ) -> Iterator[pa.RecordBatch]:
        """Batches of samples, by step. `steps` limits them to some, in that order; `where` to the rows for which an
        expression holds: `pc.field("outcome") == "wrong"`. A file that cannot be read is skipped with a note."""
        schema = rollout_schema()
        if unknown := [name for name in columns if name not in COLUMNS]:
            raise ValueError(f"rollouts have no column {', '.join(unknown)}; there are {', '.join(COLUMNS)}")
        if where is not None:
            schema.empty_table().filter(where)  # an expression over other columns is no damage of the files
        for step in self.steps(kind) if steps is None else steps:
            yield from self._read(f"rollouts/{kind}-{step:06d}.parquet", schema, columns, where)

    def _read(
        self, name: str, schema: pa.Schema, columns: Sequence[str], where: "pc.Expression | None"
    ) -> Iterator[pa.RecordBatch]:
        try:
            file = self.files.open_dataset(name, schema)
            if where is not None and file.count_rows(filter=where) == 0:
                return  # reads the columns of the expression only, not the text
            lacks_lengths = LENGTH in columns and LENGTH not in next(file.get_fragments()).physical_schema.names
            read = dict.fromkeys([*columns, "mask"] if lacks_lengths else columns)
            batches = file.scanner(columns=list(read), filter=where, batch_size=BATCH_ROWS, fragment_readahead=1)
            for batch in batches.to_batches():
                if batch.num_rows:
                    yield _with_lengths(batch).select(list(columns)) if lacks_lengths else batch
        except FileNotFoundError:
            return  # no such step; or a run resumed from an earlier step deleted it meanwhile
        except UNREADABLE as error:
            self._note(f"{self.path}/{name} is damaged: {str(error).splitlines()[0]}")

    def _read_object(self, name: str) -> dict[str, Any] | None:
        """A JSON object; None without the file."""
        content = self.files.read(name)
        if content is None:
            return None
        try:
            found = json.loads(content)
        except ValueError as error:
            raise RunDirError(f"cannot read {self.path}/{name}: {error}") from error
        if not isinstance(found, dict):
            raise RunDirError(f"{self.path}/{name} holds no JSON object; it was not written by this run")
        return found

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _with_lengths(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Counts the sampled tokens of a file from before the column `response_length`."""
    place = batch.schema.get_field_index(LENGTH)
    return batch.set_column(place, LENGTH, pa.array(response_lengths(batch["mask"]), pa.int32()))


def response_lengths(masks: pa.Array) -> NDArray[np.int64]:
    """Number of sampled tokens of each sample, from the column `mask`."""
    ends = np.concatenate(([0], np.cumsum(masks.flatten().to_numpy(zero_copy_only=False), dtype=np.int64)))
    lengths = pc.fill_null(pc.list_value_length(masks), 0).to_numpy(zero_copy_only=False)
    places = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    return np.asarray(np.diff(ends[places]))


def _no_run(files: RunFiles) -> str:
    """Error of a place that is no run directory, with the likeliest one that is."""
    if files.is_remote:
        runs = [name for name in files.folders() if files.below(name).info("config.yaml")]
        hint = f"{files.location}/{runs[-1]}" if runs else "s3://BUCKET/PREFIX of a run directory"
        return f"{files.location} holds no run; give {hint}"
    path = Path(files.location)
    if not path.exists():
        return f"{path} does not exist; give the directory of a run, such as runs/quickstart-1"
    above = next((each for each in path.resolve().parents[:3] if RunDir(each).config.is_file()), None)
    if above is not None:
        return f"{path} holds no run, but is part of one: give {above}"
    if not path.is_dir():
        return f"{path} is a file; give the directory of a run, such as runs/quickstart-1"
    below = [each.parent for each in path.glob("*/config.yaml") if each.is_file()]
    if below:
        return f"{path} holds no run itself; give one of its folders, such as {max(below, key=_age)}"
    if (path / "samples.jsonl").is_file():
        return f"{path} holds no run, but results of `dojang eval`: read its samples.jsonl"
    return f"{path} holds no run; give the directory of a run, such as runs/quickstart-1"


def _age(directory: Path) -> float:
    return (directory / "config.yaml").stat().st_mtime
