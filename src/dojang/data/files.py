"""Rows of the user's own: JSON lines, JSON, CSV or Parquet; a template makes the question, a column has the answer."""

import json
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from dojang.core.errors import DataError
from dojang.data.rows import share_of
from dojang.data.section import DataSection
from dojang.types import Message, Problem

__all__ = ["FilesConfig"]


class FilesConfig(DataSection):
    """Files of the user's own."""

    name: Literal["files"] = "files"
    train: Path
    """A file, or a directory of them."""
    test: Path | None = None
    """The same for held-out problems; without it some of the training rows are taken (held_out)."""
    held_out: float = Field(default=0.1, gt=0, lt=1)
    """Which share of the training rows, where there is no test file."""
    prompt: str = "{question}"
    """What the model is asked, with names of columns in braces."""
    system: str = ""
    """What it is told before."""
    answer: str = "answer"
    """The column with what the answer is checked against. For task.name=code, an object with `private` tests."""
    id: str = ""
    """A column with names of problems; without it they are numbered."""
    tier: str = ""
    """A column with the part of the dataset a row belongs to."""
    source: str = "files"
    """What scores are reported as."""
    stop: tuple[str, ...] = ()
    """Strings that end an answer."""

    @field_validator("prompt")
    @classmethod
    def _is_template(cls, prompt: str) -> str:
        try:
            fields = [field for _, field, _, _ in string.Formatter().parse(prompt) if field is not None]
        except ValueError as error:
            raise ValueError(f"{error}; write {{{{ and }}}} for braces that stand for themselves") from None
        if not fields or not all(field.isidentifier() for field in fields):
            raise ValueError("names of columns go into braces, such as {question}, and at least one is needed")
        return prompt

    def read(self, split: str) -> list[Problem]:
        """The problems of the `train` or `test` split, in the order of the files."""
        if split not in ("train", "test"):
            raise DataError(f"files have no split {split!r}; use 'train' or 'test'")
        if self.test is not None:
            return self._read(self.train if split == "train" else self.test)
        every = self._read(self.train)
        chosen = [each for each in every if (share_of(each.id) < self.held_out) == (split == "test")]
        if not chosen:
            raise DataError(
                f"data.held_out={self.held_out:g} of the {len(every):,} rows of {self.train} leaves none for the "
                f"{split} split: rows are chosen by their names. Change data.held_out or set data.test to a file"
            )
        return chosen

    def _read(self, path: Path) -> list[Problem]:
        from dojang.data.readers import find  # not before there is something to read

        problems = [
            self._problem(row, f"{file.name}/{number}")
            for file in find(str(path.resolve()))
            for number, row in file.rows()
        ]
        if not problems:
            raise DataError(f"{path} holds no rows")
        return problems

    def _problem(self, row: Mapping[str, Any], where: str) -> Problem:
        try:
            system = (Message("system", self.system),) if self.system else ()
            reference = _reference(row[self.answer])
            return Problem(
                id=str(row[self.id]) if self.id else f"{self.source}/{where}",
                source=self.source,
                messages=(*system, Message("user", self.prompt.format_map(row))),
                reference=reference,
                tier=str(row[self.tier]) if self.tier else "",
                # Tests that were written as JSON are not kept twice.
                columns={key: value for key, value in row.items() if key != self.answer or value is reference},
            )
        except KeyError as error:
            raise DataError(
                f"{where}: there is no column {error}, but {', '.join(map(str, list(row)[:12]))}; set data.prompt, "
                "data.answer, data.id and data.tier to what there is"
            ) from None


def _reference(answer: Any) -> Any:
    """An object may be written as JSON, as in a CSV file."""
    if isinstance(answer, str) and answer.startswith("{"):
        try:
            return json.loads(answer)
        except ValueError:  # a set, in mathematics
            return answer
    return answer
