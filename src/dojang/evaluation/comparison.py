"""Compares two evaluations on their common problems: a table of differences, and a chart of both models."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dojang.core.errors import DataError
from dojang.evaluation.report import name_of, plot_accuracy, table
from dojang.loop.scores import Answered, Estimate
from dojang.loop.statistics import MIN_PROBLEMS, Difference
from dojang.loop.statistics import compare as paired

__all__ = ["Comparison"]


@dataclass(frozen=True, slots=True)
class _Pair:
    """Answers of both models to the same problems."""

    data: str
    shots: int | None
    answers: tuple[Sequence[Answered], Sequence[Answered]]

    @property
    def estimates(self) -> list[Estimate]:
        return [Estimate.of(each, lambda answer: answer.accuracy) for each in self.answers]

    @property
    def difference(self) -> Difference:
        first, second = ([(answer.right, answer.samples) for answer in each] for each in self.answers)
        return paired(first, second)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two evaluations, paired by dataset and number of shots."""

    labels: tuple[str, str]
    pairs: Sequence[_Pair]

    @classmethod
    def of(cls, first: Path, second: Path) -> "Comparison":
        """Reads two outputs of `dojang eval`."""
        before, after = _read(first), _read(second)
        results = {name_of(result): result for result in before["results"]}
        pairs = [
            pair
            for result in after["results"]
            if (name := name_of(result)) in results and (pair := _pair(results[name], result)).answers[0]
        ]
        if not pairs:
            raise DataError("the two evaluations have no problems in common")
        return cls(_labels(before, after, (first, second)), pairs)

    def table(self) -> str:
        """Returns a Markdown table: accuracy of both, difference with interval, p-value."""
        rows = []
        gaps = [pair.difference for pair in self.pairs]
        for pair, gap in zip(self.pairs, gaps, strict=True):
            rows.append(
                [
                    name_of({"data": pair.data, "shots": pair.shots}),
                    gap.problems,
                    *(f"{estimate.value:.1%}" for estimate in pair.estimates),
                    f"{gap.mean:+.1%} [{gap.low:+.1%}, {gap.high:+.1%}]",
                    _shown_p(gap.p),
                ]
            )
        headings = ["", "problems", *self.labels, "difference", "p"]
        return f"{table(headings, rows)}\n\n{_methods(gaps)}\n"

    def plot(self, path: Path) -> None:
        """Draws the accuracy of both models with 95% intervals, over shots or by dataset."""
        points = [
            (label, pair.data, pair.shots, pair.estimates[at])
            for pair in self.pairs
            for at, label in enumerate(self.labels)
        ]
        plot_accuracy(path, points)


def _shown_p(p: float | None) -> str:
    if p is None:
        return "-"
    return f"{p:.2g}" if p >= 0.0001 else "< 0.0001"


def _methods(gaps: Sequence[Difference]) -> str:
    """Describes the methods behind intervals and p-values."""
    test = "exact" if all(gap.exact for gap in gaps) else "exact, or sampled where the support is too large"
    notes = [
        "95% intervals: adjusted Wald for paired proportions (Bonett and Price, 2012), n = problems.",
        f"p: two-sided paired permutation test over problems, {test}; with one sample each, McNemar's exact test.",
    ]
    if any(gap.p is None for gap in gaps):
        notes.append(f"No p-value with fewer than {MIN_PROBLEMS} problems: no result could be significant at 5%.")
    if any(gap.thinned for gap in gaps if gap.p is not None):
        notes.append("The test uses equally many samples of both models per problem, drawn at random.")
    return "\n".join(notes)


def _pair(first: dict[str, Any], second: dict[str, Any]) -> _Pair:
    before, after = ({each["id"]: Answered(**each) for each in which["answers"]} for which in (first, second))
    both = [key for key in before if key in after]
    return _Pair(second["data"], second["shots"], ([before[key] for key in both], [after[key] for key in both]))


def _labels(first: dict[str, Any], second: dict[str, Any], paths: tuple[Path, Path]) -> tuple[str, str]:
    """Returns the model names, marked base and trained if one was trained from the other."""
    names = first["model"], second["model"]
    if second.get("trained_from") == names[0]:
        return f"base: {names[0]}", f"trained: {names[1]}"
    if first.get("trained_from") == names[1]:
        return f"trained: {names[0]}", f"base: {names[1]}"
    if names[0] == names[1] and paths[0] != paths[1]:
        return f"{names[0]} ({paths[0]})", f"{names[1]} ({paths[1]})"
    return names


def _read(path: Path) -> dict[str, Any]:
    file = path / "results.json" if path.is_dir() else path
    try:
        found: dict[str, Any] = json.loads(file.read_text())
        if not isinstance(found["results"], list):
            raise TypeError("no results")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file} is not an output of `dojang eval --output`: {error}") from None
    return found
