"""MATH-500: five hundred problems of the MATH test set, with answers in LaTeX, for evaluation."""

from collections.abc import Mapping
from typing import Any, ClassVar

from dojang.core.section import Section
from dojang.data.deepmath import ask
from dojang.data.prepare_rows import Known
from dojang.types import Problem

__all__ = ["Math500"]


class Math500(Section):
    """Competition mathematics."""

    ability: ClassVar[str] = "math"

    def split(self, file: str, row: Mapping[str, Any]) -> str:
        return "test"

    def problem(self, row: Mapping[str, Any], where: str) -> Problem:
        name = f"math500/{row['unique_id']}"
        return Problem(name, "math500", ask(row["problem"].strip()), row["answer"], f"level {row['level']}")

    def known(self, row: Mapping[str, Any]) -> Known:
        return Known((row["solution"],))
