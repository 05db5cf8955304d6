"""Parameters of requests: checked, bounded, with errors that name them."""

import math
from collections.abc import Mapping

from dojang.core.errors import ConfigError
from dojang.viewer.index import NAMES
from dojang.viewer.rollout_query import BOUNDS, RolloutFilter

__all__ = ["Given", "decimal", "filter_of", "names", "sample_ids", "whole"]

_LARGEST = 2**53
"""Largest whole number that JSON clients can write exactly."""
_LONGEST = 10_000
"""Characters of a parameter."""
Given = Mapping[str, str]


def whole(
    given: Given, name: str, default: int | None = None, low: int = -_LARGEST, high: int = _LARGEST
) -> int | None:
    """A whole number; the default if it is missing or empty. A value beyond the bounds becomes the nearest one."""
    text = given.get(name, "").strip()
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r:.80} is no whole number") from None
    return max(low, min(high, value))


def decimal(given: Given, name: str) -> float | None:
    """A finite number; None if it is missing or empty."""
    text = given.get(name, "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"{name}={text!r:.80} is no finite number")
    return value


def names(given: Given, name: str) -> list[str]:
    """Names that are separated by commas."""
    return [each for each in given.get(name, "")[:_LONGEST].split(",") if each]


def filter_of(given: Given) -> RolloutFilter:
    """Filter of rollouts. A problem is one name, which may hold commas."""
    bounds = {name: decimal(given, name) if "reward" in name else whole(given, name) for name in BOUNDS}
    allowed = {name: names(given, name) for name in NAMES if name != "problem"}
    allowed["problem"] = [given["problem"]] if given.get("problem") else []
    return RolloutFilter(
        {name: value for name, value in bounds.items() if value is not None},
        {name: some for name, some in allowed.items() if some},
    )


def sample_ids(given: Given) -> tuple[dict[str, int], str]:
    """Step, prompt_index, index and turn of a sample, and its role. Raises ConfigError if one is missing."""
    found: dict[str, int] = {}
    for name in ("step", "prompt_index", "index", "turn"):
        value = whole(given, name, 0 if name == "turn" else None)
        if value is None:
            raise ConfigError(f"{name} is missing: a sample is named by kind, step, prompt_index, index, role and turn")
        found[name] = value
    return found, given.get("role", "")
