"""Draws the mean reward of some runs over their learning, side by side, and prints it as a table.

    python bench/curves.py OUTPUT.png [--seconds] NAME=RUN_DIR/metrics.jsonl NAME=...

The x axis counts the steps that the policy had learned from: with a lag, fewer than the run. Of several batches of the
same policy the last is shown. With --seconds it is the time of all steps so far.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

REWARD, ACCURACY, LOSS = "critic/rewards/mean", "val/accuracy", "actor/loss"
STALENESS = "staleness/max"
FORMER_ACCURACY = "val/score"
"""Its name in the published results of docs/results."""
EVERY = 10


def read(path: Path, name: str) -> dict[int, float]:
    """A figure by the number of steps that the policy had learned from before."""
    found, learned = {}, 0
    for row in map(json.loads, path.read_text().splitlines()):
        if name in row:
            found[learned - round(row.get(STALENESS, 0))] = row[name]
        learned += LOSS in row
    return found


def read_seconds(path: Path) -> dict[float, float]:
    """Mean reward by the seconds of all steps so far."""
    found, seconds = {}, 0.0
    for row in map(json.loads, path.read_text().splitlines()):
        if REWARD in row:
            seconds += row["timing_s/step"]
            found[seconds] = row[REWARD]
    return found


def smooth(values: Mapping[Any, float]) -> list[float]:
    """Means over the last five steps."""
    found = list(values.values())
    return [sum(found[max(0, at - 4) : at + 1]) / min(at + 1, 5) for at in range(len(found))]


def draw(output: Path, runs: dict[str, Path], *, seconds: bool) -> None:
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, path in runs.items():
        values: Mapping[Any, float] = read_seconds(path) if seconds else read(path, REWARD)
        axes.plot(list(values), smooth(values), label=name, linewidth=1.6)
    axes.set(xlabel="seconds" if seconds else "steps learned from", ylabel="mean reward, over 5 steps")
    axes.axhline(0, color="0.8", linewidth=0.8, zorder=0)
    axes.legend(frameon=False, ncols=2)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(output, dpi=110)


def table(runs: dict[str, Path]) -> str:
    last = max(max(read(path, REWARD)) for path in runs.values())
    steps = [*range(0, last, EVERY), last]
    lines = [
        f"| mean reward after | {' | '.join(map(str, steps))} | held out, before and after |",
        "|---" * (len(steps) + 2) + "|",
    ]
    for name, path in runs.items():
        values, scores = read(path, REWARD), read(path, ACCURACY) or read(path, FORMER_ACCURACY)
        cells = [f"{values[step]:.2f}" if step in values else "" for step in steps]
        held = f"{scores[min(scores)]:.0%}, {scores[max(scores)]:.0%}" if len(scores) > 1 else ""
        lines.append(f"| {name} | {' | '.join(cells)} | {held} |")
    return "\n".join(lines)


def main() -> None:
    output, *named = [each for each in sys.argv[1:] if each != "--seconds"] or [""]
    if not named or not all("=" in each for each in named):
        raise SystemExit(__doc__)
    matplotlib.use("Agg")
    runs = {name: Path(path) for name, _, path in (each.partition("=") for each in named)}
    draw(Path(output), runs, seconds="--seconds" in sys.argv)
    sys.stdout.write(f"{table(runs)}\n")


if __name__ == "__main__":
    main()
