"""The problems of a task, by split."""

from collections.abc import Mapping, Sequence

from dojang.errors import DataError
from dojang.types import Problem

__all__ = ["problems_of"]


def problems_of(problems: Mapping[str, Sequence[Problem]], split: str) -> Sequence[Problem]:
    """DataError if there is no such split."""
    if split not in problems:
        there_is = ", ".join(map(repr, problems)) or "none at all"
        raise DataError(f"the data has no split {split!r}; there is {there_is}")
    return problems[split]
