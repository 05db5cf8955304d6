"""Training problems that are also in a held-out set, by the words of their statements (overlap.py)."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from dojang.data.overlap import Texts, stripped
from dojang.data.rows import statement_of
from dojang.types import Problem

__all__ = ["NGRAM", "SHARE", "overlapping", "statements"]

NGRAM = 13
"""Words of a run that is looked for."""
SHARE = 0.3
"""Share of a problem's runs in one held-out problem that counts as overlap."""


def statements(part: Path) -> list[Problem]:
    """Problems of a part without their references, which may be large."""
    table = pq.read_table(part, columns=["data_source", "prompt", "extra_info"])
    return [statement_of(row) for row in table.to_pylist()]


def overlapping(train: Sequence[Problem], held_out: Mapping[str, Sequence[Problem]]) -> list[dict[str, Any]]:
    """Training problems with `SHARE` or more of their runs in one problem of a held-out set, each set on its own."""
    return list(_found(train, held_out)) if train else []


def _found(train: Sequence[Problem], held_out: Mapping[str, Sequence[Problem]]) -> Iterator[dict[str, Any]]:
    texts = {name: Texts(problems, NGRAM) for name, problems in held_out.items() if problems}
    # Two problems are enough to tell an instruction: dropping all of a small dataset because of one would be worse.
    for problem, words in zip(train, stripped(train, believed=2), strict=True):
        for name, known in texts.items():
            best = known.search(words)
            if best is not None and best.share >= SHARE:
                yield {"id": problem.id, "in": name, "problem": best.id, "share": round(best.share, 3)}
                break
