"""Base class of the datasets that read the user's own files: where they are, and what is held out."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from dojang.core.errors import DataError
from dojang.data.place import Place
from dojang.data.rows import hash_fraction
from dojang.data.section import DataSection
from dojang.types import Problem

if TYPE_CHECKING:
    from dojang.data.readers import File

__all__ = ["FileSection"]


class FileSection(DataSection):
    """Files of rows. A subclass says how a row becomes a problem."""

    train: Place
    """Training rows: a file or directory (Parquet, JSON lines, JSON, CSV, or a directory of `save_to_disk`), s3://...,
    or a dataset on the Hugging Face hub (org/name or org/name/subset). If files are named after splits, the train
    split."""
    test: Place | None = None
    """Held-out rows: a place like train; of files named after splits, the test split (else validation). Null: the test
    split of train, or if it has none a share of the training rows (held_out)."""
    held_out: float = Field(default=0.1, gt=0, lt=1)
    """Share of the training rows that is held out if test is null and train has no test split."""

    def read(self, split: str) -> list[Problem]:
        """Returns the problems of the `train` or `test` split, in the order of the files."""
        from dojang.data.readers import find  # imported late: loads pyarrow
        from dojang.data.splits import has_held_out

        if split not in ("train", "test"):
            raise DataError(f"the data has no split {split!r}; use 'train' or 'test'")
        place = self.test if self.test is not None and split == "test" else self.train
        files = find(str(place))
        if self.test is not None or has_held_out(files):
            return self._read(files, split)
        rows = self._read(files, "train")
        if len(rows) < 2 and split == "train":
            return rows
        if len(rows) < 2:
            raise DataError(f"{place} has one row, so none can be held out; add rows, or set data.test")
        held_out = self._held_out([hash_fraction(each.id) for each in rows])
        return [each for each, held in zip(rows, held_out, strict=True) if held == (split == "test")]

    def _held_out(self, hashes: Sequence[float]) -> list[bool]:
        """Whether each row is held out. Rows are chosen by a hash of their ids; at least one, and not all."""
        smallest, largest = min(hashes), max(hashes)
        return [each == smallest or (each < self.held_out and each != largest) for each in hashes]

    def problem(self, row: Mapping[str, Any], where: str) -> Problem:
        """Returns the problem of a row; `where` is its file and number. Raises ValueError, with the reason, if the row
        cannot become one."""
        raise NotImplementedError

    def _read(self, files: Sequence["File"], split: str) -> list[Problem]:
        from dojang.data.splits import choose_split

        problems = []
        for file in choose_split(files, split):
            for number, row in file.rows():
                try:
                    problems.append(self.problem(row, f"{file.name}/{number}"))
                except ValueError as error:
                    raise DataError(f"{file.position(number)}: {error}") from None
        if not problems:
            raise DataError(f"{files[0].root} holds no rows")
        return problems
