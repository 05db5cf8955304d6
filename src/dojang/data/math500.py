"""MATH-500: five hundred problems of the MATH test set, with answers in LaTeX, for evaluation."""

from collections.abc import Mapping
from typing import Any, ClassVar

from dojang.data.deepmath import make_prompt
from dojang.data.prepare_rows import Dataset, KnownAnswers
from dojang.types import Problem

__all__ = ["Math500"]


class Math500(Dataset):
    """Competition mathematics."""

    ability: ClassVar[str] = "math"
    evaluation_only: ClassVar[bool] = True

    def problem(self, row: Mapping[str, Any], where: str) -> Problem:
        name = f"math500/{row['unique_id']}"
        return Problem(name, "math500", make_prompt(row["problem"].strip()), row["answer"], f"level {row['level']}")

    def known(self, row: Mapping[str, Any]) -> KnownAnswers:
        return KnownAnswers((row["solution"],))
