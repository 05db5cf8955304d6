"""Reward functions with faults, for real runs that go wrong."""

import time
from typing import Any


def brief(problem: Any, text: str) -> float:
    """Pays for short completions, right or wrong."""
    return 1.0 - min(1.0, len(text) / 60)


def broken(problem: Any, text: str) -> float:
    """Cannot grade completions with a 5."""
    if "5" in text:
        raise ValueError("no connection to the grader")
    return 0.0


def constant(problem: Any, text: str) -> float:
    """Pays the same for everything."""
    return 1.0


def slow(problem: Any, text: str) -> float:
    """Takes its time."""
    time.sleep(0.3)
    return 0.0
