"""Figures, settings and samples of a run that a report shows."""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dojang.config.recipe import differences, load, resolve
from dojang.core.errors import DojangError
from dojang.core.run_files import RunFiles
from dojang.core.section import flatten
from dojang.loop.statistics import interval
from dojang.track.panels import Metric
from dojang.track.registry import ROWS, find
from dojang.viewer.metric_log import MetricLog
from dojang.viewer.options import ShowOptions, Sort
from dojang.viewer.records import RunRecords
from dojang.viewer.run_status import read_object
from dojang.viewer.samples import Row, matching, ordered, with_texts
from dojang.viewer.svg_chart import Line

__all__ = ["Evaluation", "ReportChart", "ReportSample", "charts", "environment", "evaluations", "samples", "settings"]

PANELS = (
    "Held-out accuracy",
    "Held-out loss",
    "Reward",
    "Parts of the reward",
    "Outcomes",
    "Completion length",
    "Truncated, or with text after the answer",
    "Groups",
    "Loss",
    "Entropy",
    "KL",
    "Clipped",
    "Gradient",
    "Engine and trainer",
    "Distillation",
    "Staleness",
    "Stages of a step",
    "Tokens",
)
"""Titles of the charts, in order; those without values are left out."""
_LINES = 8
_POINTS = 600
"""Most points of a line: a report of 18 charts with 8 lines each stays below 3 MB."""
_RANDOM = 2


@dataclass(frozen=True, slots=True)
class ReportChart:
    """A panel with the metrics of the run."""

    title: str
    unit: str
    meaning: str
    lines: Sequence[Line]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Accuracy at a step."""

    name: str
    step: int
    problems: int | None
    accuracy: float
    low: float | None
    high: float | None
    """95% interval; None without the rollouts of the evaluation."""


@dataclass(frozen=True, slots=True)
class ReportSample:
    """A sample and why it is shown."""

    reason: str
    row: Row


def charts(files: RunFiles) -> list[ReportChart]:
    """Panels that have values."""
    log = MetricLog(files)
    log.update()
    known = {name: find(name) for name in (each["name"] for each in log.catalogue())}
    panels = {panel.title: panel for row in ROWS for panel in row.panels}
    shown = []
    for panel in (panels[title] for title in PANELS):
        own = [name for metric in panel.metrics for name, found in known.items() if found == metric]
        lines = [Line(name, each["step"], each["value"]) for name, each in log.series(own[:_LINES], _POINTS).items()]
        if any(line.points() for line in lines):
            shown.append(
                ReportChart(panel.title, panel.metrics[0].unit, _meaning([known[name] for name in own]), lines)
            )
    return shown


def _meaning(metrics: Sequence[Metric | None]) -> str:
    """Meaning of the metrics if it is one for all."""
    meanings = {each.meaning for each in metrics if each}
    left = f"{len(metrics) - _LINES} further metrics are left out." if len(metrics) > _LINES else ""
    return " ".join(filter(None, [meanings.pop() if len(meanings) == 1 else "", left]))


def evaluations(records: RunRecords) -> list[Evaluation]:
    """Evaluations on the held-out split and on benchmarks, with intervals over problems."""
    found = []
    for kind in (each for each in records.kinds if each.startswith("test")):
        name = kind.removeprefix("test").removeprefix("-") or "held-out"
        found += [each for step in records.steps(kind) if (each := _evaluation(records, kind, name, step))]
    if found:
        return found
    rows = [row for row in records.metrics() if isinstance(row.get("val/accuracy"), float)]
    return [Evaluation("held-out", int(row["step"]), None, row["val/accuracy"], None, None) for row in rows]


def _evaluation(records: RunRecords, kind: str, name: str, step: int) -> Evaluation | None:
    right: defaultdict[int, list[bool]] = defaultdict(list)
    for batch in records.rollouts(kind, [step], ["prompt_index", "outcome", "reward"]):
        for row in batch.to_pylist():
            if row["reward"] is not None:  # could not be judged: says nothing about the model
                right[row["prompt_index"]].append(row["outcome"] == "accepted")
    if not right:
        return None
    shares = [sum(each) / len(each) for each in right.values()]
    bounds = interval(shares)
    return Evaluation(name, step, len(shares), sum(shares) / len(shares), bounds.low, bounds.high)


def settings(records: RunRecords) -> tuple[list[tuple[str, Any, Any]], str]:
    """Settings that differ from the recipe: key, value in the recipe, value in the run; and a note if the recipe cannot
    be read any more."""
    recipe = str(records.run.get("recipe") or "")
    try:
        wanted, own = load(recipe), resolve(recipe, dict(records.config))
    except DojangError as error:
        note = f"The recipe cannot be compared ({str(error).splitlines()[0]}); these are all settings of the run."
        return [(key, None, value) for key, value in flatten(records.config)], note
    return [(key, then, now) for key, (then, now) in sorted(differences(wanted, own).items())], ""


def environment(files: RunFiles) -> list[tuple[str, Any]]:
    """Versions, machine and command of every start of the run, if it recorded them."""
    recorded = read_object(files, "environment.json")
    starts = recorded.get("starts")
    if not isinstance(starts, list) or not all(isinstance(start, dict) for start in starts):
        return list(flatten(recorded))
    prefixes = [f"start {place}: " if len(starts) > 1 else "" for place in range(1, len(starts) + 1)]
    return [
        (prefix + key, value) for prefix, start in zip(prefixes, starts, strict=True) for key, value in flatten(start)
    ]


def samples(records: RunRecords) -> list[ReportSample]:
    """Best, worst and random samples of the first and of the last step of training."""
    steps = records.steps("train")
    found: list[ReportSample] = []
    for name, step in zip(("first", "last"), dict.fromkeys((*steps[:1], *steps[-1:])), strict=False):
        found += _of_step(records, name, step)
    return found


def _of_step(records: RunRecords, name: str, step: int) -> Iterator[ReportSample]:
    options = ShowOptions(step=step)
    try:
        rows = matching(records, "train", step, options)
    except DojangError:
        return  # the file is damaged or was deleted meanwhile
    judged = [row for row in ordered(rows, Sort.MOST_REWARD) if row["reward"] is not None] or rows
    chosen = {"best": judged[0], "worst": judged[-1]}
    rest = [row for row in rows if row["place"] not in {each["place"] for each in chosen.values()}]
    picked = random.Random(step).sample(rest, min(_RANDOM, len(rest)))
    reasons = [f"{which} of the {name} step" for which in (*chosen, *("random sample",) * len(picked))]
    texts = with_texts(records, "train", step, options, [*chosen.values(), *picked])
    yield from (ReportSample(reason, row) for reason, row in zip(reasons, texts, strict=True))
