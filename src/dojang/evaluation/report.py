"""Tables and charts of evaluations."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dojang.loop.scores import Estimate
from dojang.loop.statistics import BOOTSTRAP, CLOPPER_PEARSON

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Point", "name_of", "plot_accuracy", "plot_shots", "report", "table", "write_csv"]

Point = tuple[str, str, int | None, Estimate]
"""Label of the line, dataset, number of shots, accuracy."""
_LINE = 60
"""Most characters of a line in a legend."""


def name_of(result: dict[str, Any]) -> str:
    return str(result["data"]) if result["shots"] is None else f"{result['data']}, {result['shots']} shots"


def _shown(estimate: dict[str, Any]) -> str:
    mark = "" if estimate["method"] == CLOPPER_PEARSON else "*"
    return f"{estimate['value']:.1%} [{estimate['low']:.1%}, {estimate['high']:.1%}]{mark}"


def _methods(results: Sequence[dict[str, Any]]) -> str:
    estimates = [
        each
        for result in results
        for each in (result["accuracy"], *result["pass_at"].values(), *result["tiers"].values())
    ]
    bootstrapped = any(each["method"] == BOOTSTRAP for each in estimates)
    return CLOPPER_PEARSON + (f"; where marked *, {BOOTSTRAP}" if bootstrapped else "")


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _sampling(settings: dict[str, Any]) -> str:
    if settings["temperature"] == 0:
        return "greedy"
    named = {"temperature": None, "top_p": 1, "top_k": 0, "min_p": 0}
    return ", ".join(f"{key} {settings[key]:g}" for key, off in named.items() if settings[key] != off)


def report(found: dict[str, Any]) -> str:
    results, settings = found["results"], found["settings"]
    how = _sampling(settings)
    ks = list(dict.fromkeys(k for result in results for k in result["pass_at"]))[1:]
    rows = [
        [
            name_of(result),
            result["accuracy"]["problems"],
            _shown(result["accuracy"]),
            *(_shown(result["pass_at"][k]) if k in result["pass_at"] else "" for k in ks),
            f"{result['length']:.0f}",
            result["judge_errors"],
        ]
        for result in results
    ]
    headings = ["", "problems", "accuracy", *(f"pass@{k}" for k in ks), "tokens", "judge errors"]
    parts = [
        f"# {found['model']}",
        f"Answers a problem: {settings['samples']}, {how}, at most {settings['max_tokens']} tokens.",
        f"95% intervals: {_methods(results)}.",
        table(headings, rows),
    ]
    for result in results:
        if result["tiers"]:
            tiers = [[name, each["problems"], _shown(each)] for name, each in result["tiers"].items()]
            parts.append(table([name_of(result), "problems", "accuracy"], tiers))
    outcomes = list(dict.fromkeys(name for result in results for name in result["outcomes"]))
    shares = [[name_of(result), *(f"{result['outcomes'].get(each, 0):.1%}" for each in outcomes)] for result in results]
    rewards = list(dict.fromkeys(name for result in results for name in result["parts"]))
    means = [
        [name_of(result), f"{result['reward']:.3f}", *(_mean_of(result["parts"].get(each)) for each in rewards)]
        for result in results
    ]
    parts += [
        table(["share of answers", *outcomes], shares),
        table(["mean reward", "total", *(f"{each} (unweighted)" for each in rewards)], means),
    ]
    return "\n\n".join(parts) + "\n"


def _mean_of(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def write_csv(path: Path, found: dict[str, Any]) -> None:
    with path.open("w", newline="") as file:
        columns = ["data", "shots", *found["results"][0]["answers"][0]]
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        for result in found["results"]:
            for answer in result["answers"]:
                writer.writerow({"data": result["data"], "shots": result["shots"], **answer})


def plot_shots(path: Path, found: dict[str, Any]) -> None:
    """Draws accuracy over shots, a line for each dataset."""
    points = [(each["data"], "", each["shots"], Estimate(**each["accuracy"])) for each in found["results"]]
    plot_accuracy(path, points)


def plot_accuracy(path: Path, points: Sequence[Point]) -> None:
    """Draws accuracy with its interval, a line for each label: a panel over shots for each dataset that has them, and
    one with the other datasets side by side."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    panels = [
        [point for point in points if point[1] == data and point[2] is not None]
        for data in dict.fromkeys(data for _, data, shots, _ in points if shots is not None)
    ]
    if others := [point for point in points if point[2] is None]:
        panels.append(others)
    figure = Figure(figsize=(6 * len(panels), 4.5), layout="constrained")
    lines: dict[str, Any] = {}
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        if panel is others:
            _draw_datasets(axes, panel)
        else:
            _draw_shots(axes, panel)
        axes.set(ylabel="accuracy", ylim=(0, min(1.02, 1.02 * axes.get_ylim()[1])))
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))
        axes.grid(axis="y", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        handles, labels = axes.get_legend_handles_labels()
        lines |= dict(zip(labels, handles, strict=True))
    legend = figure.legend(lines.values(), map(_wrapped, lines), frameon=False, loc="outside upper left")
    for text in legend.get_texts():
        text.set_parse_math(False)  # dollars of a path are no formula
    figure.savefig(path, dpi=110)


def _wrapped(label: str) -> str:
    """A label in lines that fit above a panel."""
    return "\n".join(label[start : start + _LINE] for start in range(0, len(label), _LINE))


def _visible(label: str) -> str:
    """A label that begins with an underscore would be left out of the legend."""
    return f" {label}" if label.startswith("_") else label


def _draw_shots(axes: "Axes", points: Sequence[Point]) -> None:
    for label in dict.fromkeys(point[0] for point in points):
        line = sorted((shots or 0, estimate.value, estimate) for name, _, shots, estimate in points if name == label)
        shots, values, estimates = zip(*line, strict=True)
        axes.errorbar(shots, values, _gaps(estimates), marker="o", capsize=3, label=_visible(label))
    axes.set_xticks(sorted({shots for _, _, shots, _ in points if shots is not None}))
    axes.set_xlabel("examples shown (shots)")
    axes.set_title(points[0][1], parse_math=False)


def _draw_datasets(axes: "Axes", points: Sequence[Point]) -> None:
    names = list(dict.fromkeys(data for _, data, _, _ in points))
    labels = list(dict.fromkeys(point[0] for point in points))
    for at, label in enumerate(labels):
        mine = [(names.index(data), estimate) for name, data, _, estimate in points if name == label]
        places = [place + 0.15 * (at - (len(labels) - 1) / 2) for place, _ in mine]
        estimates = [estimate for _, estimate in mine]
        values = [estimate.value for estimate in estimates]
        axes.errorbar(places, values, _gaps(estimates), marker="o", capsize=3, linestyle="", label=_visible(label))
    axes.set_xticks(range(len(names)), names, parse_math=False)
    axes.set_xlim(-0.5, len(names) - 0.5)


def _gaps(estimates: Sequence[Estimate]) -> list[list[float]]:
    """Distances to the lower and the upper end of each interval."""
    return [[each.value - each.low for each in estimates], [each.high - each.value for each in estimates]]
