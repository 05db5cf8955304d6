"""Compares the answers to the same problems at two steps of a run."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dojang.core.errors import ConfigError
from dojang.viewer.options import ShowOptions, Sort
from dojang.viewer.records import RunRecords
from dojang.viewer.samples import Row, check_step, kind_of, matching, ordered, with_texts

__all__ = ["Difference", "Pair", "find_difference"]

Pair = tuple[Row, Row]
"""Samples of one problem, then and now."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Samples of the same problems at two steps."""

    steps: tuple[int, int]
    changes: dict[tuple[str, str], int]
    """Number of pairs by outcome then and now, the largest first."""
    unpaired: tuple[int, int]
    """Number of samples of each step without a partner."""
    pairs: list[Pair]
    """The pairs to show, with texts; those whose outcome changed come first."""


def find_difference(records: RunRecords, options: ShowOptions, steps: tuple[int, int]) -> Difference:
    """Pairs the samples of two steps by problem, role and turn, in the order in which they were sampled."""
    kind = kind_of(records, options)
    for step in steps:
        check_step(records, kind, step)
    both = replace(options, outcome="")  # a pair has two outcomes, of which one must match
    then, now = (matching(records, kind, step, both) for step in steps)
    pairs, unpaired = _pair(then, now)
    if not pairs:
        hint = "" if options.evaluation or options.benchmark else "; evaluations repeat their problems: add --eval"
        raise ConfigError(f"steps {steps[0]} and {steps[1]} have no problem in common{hint}")
    changes = Counter((str(old["outcome"]), str(new["outcome"])) for old, new in pairs)
    shown = _ordered([pair for pair in pairs if _has(pair, options.outcome)], options.sort)[: options.limit]
    if not shown:
        there = ", ".join(sorted({each for change in changes for each in change}))
        raise ConfigError(f"no sample of both steps has outcome {options.outcome!r}; there are {there}")
    sides = (with_texts(records, kind, step, both, [pair[side] for pair in shown]) for side, step in enumerate(steps))
    return Difference(steps, dict(changes.most_common()), unpaired, list(zip(*sides, strict=True)))


def _pair(then: Sequence[Row], now: Sequence[Row]) -> tuple[list[Pair], tuple[int, int]]:
    earlier: dict[tuple[object, ...], list[Row]] = {}
    for row in then:
        earlier.setdefault(_key(row), []).append(row)
    pairs = [(earlier[_key(row)].pop(0), row) for row in now if earlier.get(_key(row))]
    return pairs, (len(then) - len(pairs), len(now) - len(pairs))


def _key(row: Row) -> tuple[object, ...]:
    return row["data_source"], row["problem"], row["role"], row["turn"]


def _has(pair: Pair, outcome: str) -> bool:
    return not outcome or outcome in (pair[0]["outcome"], pair[1]["outcome"])


def _ordered(pairs: Sequence[Pair], sort: Sort | None) -> list[Pair]:
    """In the order of the later samples; by default those with another outcome first."""
    if sort is None:
        return sorted(pairs, key=lambda pair: pair[0]["outcome"] == pair[1]["outcome"])
    places = {id(now): pair for pair in pairs for now in (pair[1],)}
    return [places[id(row)] for row in ordered([now for _, now in pairs], sort)]
