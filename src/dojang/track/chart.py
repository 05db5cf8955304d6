"""Draws the chart of a run: rewards over steps, and held-out accuracy below."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dojang.core.run_dir import SOURCE_ACCURACY, SOURCE_REWARD, write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_chart", "plot"]

CODER_REWARD = "critic/rewards/turn_0/mean"
"""Second turns are left out: how many there are depends on the tester."""
TESTER_REWARD = "tester/critic/rewards/mean"
Rows = Sequence[Mapping[str, float]]


def draw_chart(path: Path, rows: Rows, title: str) -> None:
    """Writes the chart as a PNG."""
    figure = plot(rows, title)
    write_atomic(path, lambda aside: figure.savefig(aside, format="png"))


def plot(rows: Rows, title: str) -> "Figure":
    """Draws the rows of metrics.jsonl: training reward (of both models, if two train), and held-out reward and accuracy
    of each data source."""
    from matplotlib.figure import Figure  # 0.3 s to import, needed once, at the very end
    from matplotlib.ticker import PercentFormatter

    figure = Figure(figsize=(8, 6.5), dpi=120, layout="constrained")
    rewards, accuracies = figure.subplots(2, sharex=True)
    if any(TESTER_REWARD in row for row in rows):
        _draw(rewards, rows, CODER_REWARD, "training, coder, first turn", "C0")
    else:
        _draw(rewards, rows, "critic/rewards/mean", "training", "C0")
    _draw(rewards, rows, TESTER_REWARD, "training, tester", "black")  # C1 and up are data sources
    for axes, prefix in ((rewards, SOURCE_REWARD), (accuracies, SOURCE_ACCURACY)):
        for at, name in enumerate(sorted({name for row in rows for name in row if name.startswith(prefix)}), start=1):
            _draw(axes, rows, name, f"held-out, {name.removeprefix(prefix)}", f"C{at}", marker="o", linestyle="--")
        if axes.lines:
            for text in axes.legend().get_texts():
                text.set_parse_math(False)  # dollars of a name are no formula
        axes.grid(alpha=0.3)
    rewards.set_ylabel("mean reward")
    rewards.set_title(title, parse_math=False)
    accuracies.set(xlabel="step", ylabel="accuracy")
    low, high = accuracies.get_ylim()
    accuracies.set_ylim(max(low, -0.05 * high), min(high, 1 + 0.05 * (1 - low)))  # no ticks below 0% or above 100%
    accuracies.yaxis.set_major_formatter(PercentFormatter(xmax=1))  # with decimals where accuracies hardly differ
    return figure


def _draw(axes: "Axes", rows: Rows, name: str, label: str, color: str, marker: str = "", linestyle: str = "-") -> None:
    values = [(row["step"], row[name]) for row in rows if name in row]
    if values:
        axes.plot(*zip(*values, strict=True), color=color, marker=marker, linestyle=linestyle, label=label)
