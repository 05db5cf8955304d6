"""DeepMind's CodeContests: problems of programming contests, with input/output tests.

Reads the rows of the hub's Parquet files, and rows with the field names of the original protobuf, where tests are a
list of {input, output}. Keeps only problems with a Codeforces rating; the tiers are CodeFu's.
"""

import re
from collections.abc import Mapping
from typing import Any

from dojang.data.prepare_rows import Dataset, KnownAnswers, Unusable
from dojang.data.ratings import TIERS, Tier, tier_of
from dojang.data.rows import CONTEST_CHECKER, io_tests, limits
from dojang.types import Message, Problem

__all__ = ["CodeContests"]

INSTRUCTION = """\
Solve this problem with a C++17 program that reads standard input and writes standard output. Think about it first, \
then answer with the whole program in one ```cpp block."""
_SHORTEST = 40
"""Minimum letters of a statement; shorter ones are empty or consist of images."""

_CPP = (2, "CPP")
"""Number and name of C++ in the dataset."""


class CodeContests(Dataset):
    """Contest problems in C++."""

    tiers: tuple[Tier, ...] = ("easy", "hard", "expert")
    """Tiers to keep, by rating: easy 800 to 1000, hard 1100 to 2200, expert 2300 to 3500."""
    generated: bool = False
    """Whether to add the generated tests (mutations of others) to the private ones."""

    def problem(self, row: Mapping[str, Any], where: str) -> Problem:
        tier, statement = self._tier(row["cf_rating"]), _statement(row["description"])
        return Problem(
            id=f"code_contests/{row['name']}",
            source="code_contests",
            messages=(Message("user", f"{INSTRUCTION}\n\n{statement}"),),
            reference={
                "private": self._private(row),
                "public": io_tests(row["public_tests"]),
                "limits": _limits(row),
                "checker": CONTEST_CHECKER,
                "language": "cpp17",
            },
            tier=tier,
        )

    def known(self, row: Mapping[str, Any]) -> KnownAnswers:
        return KnownAnswers(_programs(row.get("solutions")), _programs(row.get("incorrect_solutions")))

    def _tier(self, rating: int | None) -> str:
        if not rating or rating < TIERS["easy"][0]:
            raise Unusable("its rating is below 800 or missing")
        tier = tier_of(rating)
        if tier not in TIERS:
            raise Unusable("its rating is between tiers, or above all")
        if tier not in self.tiers:
            raise Unusable(f"its tier {tier} is not selected")
        return tier

    def _private(self, row: Mapping[str, Any]) -> list[dict[str, str]]:
        tests = io_tests(row["private_tests"])
        if self.generated:
            tests += io_tests(row["generated_tests"])
        if not tests:
            raise Unusable("it has no private tests")
        return tests


def _programs(solutions: object) -> tuple[str, ...]:
    """Returns the C++ programs, from {language: [...], solution: [...]} or a list of pairs."""
    if isinstance(solutions, Mapping):
        pairs = list(zip(solutions["language"] or (), solutions["solution"] or (), strict=True))
    else:
        pairs = [(each["language"], each["solution"]) for each in solutions or ()]  # type: ignore[attr-defined]
    return tuple(program for language, program in pairs if language in _CPP)


def _statement(description: str | None) -> str:
    text = (description or "").strip()
    if len(re.findall(r"\w", text.replace("<image>", ""))) < _SHORTEST:
        raise Unusable("its statement has only images" if "<image>" in text else "it has no statement")
    return text


def _limits(row: Mapping[str, Any]) -> dict[str, float]:
    if row.get("input_file") or row.get("output_file"):
        raise Unusable("it reads or writes files")
    try:
        return limits(row["time_limit"] or {}, row["memory_limit_bytes"] or 0)
    except ValueError:
        raise Unusable("its limits are missing or invalid") from None
