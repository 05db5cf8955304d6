"""Prepared rows: written by `dojang data prepare`, or by others in the same layout (rows.py)."""

import json
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from dojang.core.errors import DataError
from dojang.core.section import LocalPath
from dojang.data.rows import from_row
from dojang.data.section import DataSection
from dojang.types import Problem

__all__ = ["PreparedConfig"]

_KINDS = ("*.parquet", "*.jsonl", "*.jsonl.gz", "*.json")


class PreparedConfig(DataSection):
    """Rows of problems in veRL's layout."""

    name: Literal["prepared"] = "prepared"
    path: LocalPath
    """Path to a directory with train and test, each a directory of files or one file: train.parquet, or train.jsonl."""
    tiers: tuple[str, ...] = ()
    """Tiers to keep, such as easy; empty: all. A row without a tier (in extra_info, or by the cf_rating in its ground
    truth) belongs to every tier."""

    def read(self, split: str) -> list[Problem]:
        """Returns the problems of a split, in the order of the files."""
        found: list[Problem] = []
        others = Counter[str]()
        for problem in self.all(split):
            if self.includes(problem):
                found.append(problem)
            else:
                others[problem.tier] += 1
        if not found:
            has = f"; it has {', '.join(f'{count} of {tier}' for tier, count in others.items())}" if others else ""
            wanted = f" of the tiers {', '.join(self.tiers)}" if self.tiers else ""
            raise DataError(f"the {split} split in {self.path} holds no problems{wanted}{has}")
        return found

    def includes(self, problem: Problem) -> bool:
        """Returns whether a problem is of the selected tiers; one without a tier belongs to all."""
        return not self.tiers or not problem.tier or problem.tier in self.tiers

    def load(self, split: str) -> list[Problem]:
        """Returns the problems of a split. A limit with a seed draws from the rows of the published split, so that rows
        dropped or held out by the preparation do not change the draw."""
        count = self._published_rows() if split == "train" and self.limit_seed is not None and not self.tiers else 0
        if not count:
            return super().load(split)
        found = {row: problem for row, problem in self._numbered(split) if row is not None}
        chosen = [found[row] for row in self.chosen(count) if row in found]
        if not chosen:
            raise DataError(f"{self.path} has none of the rows that data.limit={self.limit} chooses; raise data.limit")
        return chosen

    def _published_rows(self) -> int:
        """Returns the number of rows of the published training split; 0 if `dojang data prepare` did not count them."""
        try:
            report = json.loads((self.path / "report.json").read_text())
            return int(report["rows"]["train"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def all(self, split: str) -> Iterator[Problem]:
        """Yields problems of all tiers, in the order of the files."""
        return (problem for _, problem in self._numbered(split))

    def _numbered(self, split: str) -> Iterator[tuple[int | None, Problem]]:
        """Yields problems with their positions in the published split."""
        for file in self.files(split):
            for number, row in _rows(file):
                yield (row.get("extra_info") or {}).get("row"), from_row(row, f"{file.name}/{number}")

    def task_name(self, split: str) -> str:
        """Returns the task that grades a split, by the `ability` of its first row."""
        files = self.files(split)
        row = next((row for each in files for _, row in _rows(each)), None)
        if row is None or not row.get("ability"):
            lacking = "rows" if row is None else "column ability"
            raise DataError(
                f"{files[0]} has no {lacking}, so its task is unknown; `dojang data prepare` writes such rows, and "
                "gsm8k=DIR reads GSM8K's files"
            )
        ability = str(row["ability"])
        for word, task in (("cod", "code"), ("math", "maths")):
            if ability.startswith(word):
                return task
        raise DataError(f"{files[0]}: no task is registered for ability {ability!r}; known: code, math")

    def has(self, split: str) -> bool:
        """Returns whether a split has files. Raises DataError if the preparation is not finished."""
        try:
            return bool(self.files(split))
        except DataError:
            if (self.path / "progress.json").exists():
                raise
            return False

    def files(self, split: str) -> list[Path]:
        if not self.path.is_dir():
            raise DataError(f"data.path={self.path} is not a directory; `dojang data prepare` makes one")
        if (self.path / "progress.json").exists():
            raise DataError(f"the preparation of {self.path} is not finished; run the same `dojang data prepare` again")
        for kind in _KINDS:
            found = sorted((self.path / split).glob(kind)) or sorted(self.path.glob(f"{split}{kind}"))
            if found:
                return found
        raise DataError(f"{self.path} has no {split}/*.parquet, {split}.parquet, {split}/*.jsonl or {split}.jsonl")


def _rows(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    from dojang.data.readers import find  # loads pyarrow: a configuration is checked without it

    return chain.from_iterable(each.rows() for each in find(str(file.resolve())))
