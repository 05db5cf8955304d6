"""Problems from the user's own code."""

from typing import Annotated, Literal

from pydantic import Field

from dojang.errors import DataError
from dojang.settings import Section, load_object
from dojang.types import Problem

__all__ = ["CustomDataConfig"]


class CustomDataConfig(Section):
    """The escape hatch of the data room."""

    name: Literal["custom"] = "custom"
    load_with: str
    """package.module:function, called with the split (train or test); returns a list of Problem."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Strings that end an answer."""

    def load(self, split: str) -> list[Problem]:
        """Whatever the user's function returns, checked."""
        problems = load_object(self.load_with, "data.load_with")(split)
        if not isinstance(problems, list) or not all(isinstance(each, Problem) for each in problems):
            raise DataError(f"{self.load_with}({split!r}) must return a list of dojang.types.Problem")
        return problems
