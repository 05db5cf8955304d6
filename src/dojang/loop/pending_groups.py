"""Serialises rollouts that wait for their update, so that a resumed run trains on the same groups.

Problems are not written: the prompt index of a group identifies its problem.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from operator import methodcaller
from typing import Any

from dojang.types import Group, Outcome, Problem, Sample, Span, Verdict

__all__ = ["Batches", "dump", "load"]

Batches = tuple[tuple[Group, ...], ...]
"""Groups of several steps, oldest step first."""
_LATER = ("values", "advantages", "returns")
"""Fields that a sample gets in its update."""


def dump(batches: Batches) -> bytes:
    """Serialises to JSON."""
    rows = [
        [{"prompt_index": each.prompt_index, "samples": _rows(each.samples)} for each in batch] for batch in batches
    ]
    return json.dumps(rows, default=methodcaller("tolist")).encode()  # arrays; rewards may be numpy numbers


def load(text: bytes, problem: Callable[[int], Problem]) -> Batches:
    """Reads what `dump` wrote; `problem` maps a prompt index to its problem."""
    return tuple(
        tuple(
            Group(problem(row["prompt_index"]), row["prompt_index"], tuple(map(_sample, row["samples"])))
            for row in batch
        )
        for batch in json.loads(text)
    )


def _rows(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    return [{name: value for name, value in asdict(each).items() if name not in _LATER} for each in samples]


def _sample(row: dict[str, Any]) -> Sample:
    told = row["verdict"]
    terms = {name: tuple(term) for name, term in told["terms"].items()}
    verdict = Verdict(**{**told, "outcome": Outcome(told["outcome"]), "terms": terms})
    spans = tuple(Span(**each) for each in row.get("spans", ()))
    return Sample(**{**row, "verdict": verdict, "spans": spans})
