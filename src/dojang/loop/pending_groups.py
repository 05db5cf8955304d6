"""Groups that wait to be learned from, as they are kept in a checkpoint: so that a run goes on with the same ones.

Problems are not written: which one it was follows from its ordinal.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from dojang.types import Group, Outcome, Problem, Sample, Verdict

__all__ = ["Batches", "dump", "load"]

Batches = tuple[tuple[Group, ...], ...]
"""What was attempted in each of some steps, oldest first."""
_LATER = ("values", "advantages", "returns")
"""What a sample gets only when it is learned from."""


def dump(batches: Batches) -> bytes:
    """For a file."""
    rows = [[{"ordinal": group.ordinal, "samples": _rows(group.samples)} for group in batch] for batch in batches]
    return json.dumps(rows, default=float).encode()  # rewards may be numbers of numpy's


def load(text: bytes, problem: Callable[[int], Problem]) -> Batches:
    """What `dump` wrote; `problem` knows which ordinal is which."""
    return tuple(
        tuple(Group(problem(row["ordinal"]), row["ordinal"], tuple(map(_sample, row["samples"]))) for row in batch)
        for batch in json.loads(text)
    )


def _rows(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    return [{name: value for name, value in asdict(each).items() if name not in _LATER} for each in samples]


def _sample(row: dict[str, Any]) -> Sample:
    told = row["verdict"]
    terms = {name: tuple(term) for name, term in told["terms"].items()}
    verdict = Verdict(**{**told, "outcome": Outcome(told["outcome"]), "terms": terms})
    streams = {name: tuple(row[name]) for name in ("tokens", "mask", "logprobs", "token_rewards", "old_logprobs")}
    return Sample(**{**row, **streams, "verdict": verdict})
