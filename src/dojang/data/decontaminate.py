"""Decontamination: finds training problems whose statements overlap with a held-out set (overlap.py)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from dojang.data.overlap import OverlapIndex, statement_words
from dojang.data.rows import statement_of
from dojang.types import Problem

__all__ = ["NGRAM", "SHARE", "overlapping", "statements"]

NGRAM = 13
"""Words per n-gram."""
SHARE = 0.3
"""Share of a problem's n-grams in one held-out problem from which on they overlap."""


def statements(part: Path) -> list[Problem]:
    """Reads the problems of a part without their references, which may be large."""
    table = pq.read_table(part, columns=["data_source", "prompt", "extra_info"])
    return [statement_of(row) for row in table.to_pylist()]


def overlapping(train: Sequence[Problem], held_out: Mapping[str, Sequence[Problem]]) -> list[dict[str, Any]]:
    """Returns training problems with `SHARE` or more of their n-grams in one problem of a held-out set."""
    found: list[dict[str, Any]] = []
    texts = {name: OverlapIndex(problems, NGRAM) for name, problems in held_out.items() if problems and train}
    # Two problems suffice to detect a common instruction: otherwise it could drop all of a small dataset.
    for problem, words in zip(train, statement_words(train, min_problems=2), strict=True):
        for name, known in texts.items():
            best = known.search(words)
            if best is not None and best.share >= SHARE:
                found.append({"id": problem.id, "in": name, "problem": best.id, "share": round(best.share, 3)})
                break
    return found
