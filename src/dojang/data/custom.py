"""Custom dataset: problems from a user's function."""

from typing import Literal

from dojang.core.errors import DataError
from dojang.core.in_process import ObjectName
from dojang.core.section import make_object
from dojang.data.section import DataSection
from dojang.types import Problem

__all__ = ["CustomDataConfig"]


class CustomDataConfig(DataSection):
    """Custom dataset."""

    name: Literal["custom"] = "custom"
    load_with: ObjectName
    """package.module:function, called with the split (train or test); returns a list of Problem."""

    def read(self, split: str) -> list[Problem]:
        """Calls the user's function and checks its result."""
        problems = make_object(self.load_with, "data.load_with", split)
        if not isinstance(problems, list) or not all(isinstance(each, Problem) for each in problems):
            raise DataError(f"{self.load_with}({split!r}) must return a list of dojang.types.Problem")
        return problems
