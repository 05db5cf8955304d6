"""Problems from the user's own code."""

from typing import Literal

from pydantic import field_validator

from dojang.core.errors import DataError
from dojang.core.section import make_object
from dojang.data.section import DataSection
from dojang.types import Problem

__all__ = ["CustomDataConfig"]


class CustomDataConfig(DataSection):
    """The escape hatch of the data room."""

    name: Literal["custom"] = "custom"
    load_with: str
    """package.module:function, called with the split (train or test); returns a list of Problem."""
    stop: tuple[str, ...] = ()
    """Strings that end an answer."""

    @field_validator("stop")
    @classmethod
    def _not_empty(cls, stop: tuple[str, ...]) -> tuple[str, ...]:
        if not all(stop):
            raise ValueError("an empty string would end every answer before it begins")
        return stop

    def read(self, split: str) -> list[Problem]:
        """Whatever the user's function returns, checked."""
        problems = make_object(self.load_with, "data.load_with", split)
        if not isinstance(problems, list) or not all(isinstance(each, Problem) for each in problems):
            raise DataError(f"{self.load_with}({split!r}) must return a list of dojang.types.Problem")
        return problems
