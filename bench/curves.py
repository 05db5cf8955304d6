"""Draws the mean reward of some runs over their learning, side by side, and prints it as a table.

    python bench/curves.py OUTPUT.png NAME=RUN_DIR/metrics.jsonl NAME=...

The x axis counts the steps that the policy had learned from. Of steps without an update the last is shown.
"""

import json
import sys
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

REWARD, ACCURACY, LOSS = "critic/rewards/mean", "val/accuracy", "actor/loss"
FORMER_ACCURACY = "val/score"
"""Its name in the published results of docs/results."""
EVERY = 10


def read(path: Path, name: str) -> dict[int, float]:
    """A figure by how many steps the policy had learned from before."""
    found, learned = {}, 0
    for row in map(json.loads, path.read_text().splitlines()):
        if name in row:
            found[learned] = row[name]
        learned += LOSS in row
    return found


def smooth(values: dict[int, float]) -> list[float]:
    """Means over the last five steps."""
    found = list(values.values())
    return [sum(found[max(0, at - 4) : at + 1]) / min(at + 1, 5) for at in range(len(found))]


def draw(output: Path, runs: dict[str, Path]) -> None:
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, path in runs.items():
        values = read(path, REWARD)
        axes.plot(list(values), smooth(values), label=name, linewidth=1.6)
    axes.set(xlabel="steps learned from", ylabel="mean reward, over 5 steps")
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
    if len(sys.argv) < 3 or not all("=" in each for each in sys.argv[2:]):
        raise SystemExit(__doc__)
    matplotlib.use("Agg")
    runs = {name: Path(path) for name, _, path in (each.partition("=") for each in sys.argv[2:])}
    draw(Path(sys.argv[1]), runs)
    sys.stdout.write(f"{table(runs)}\n")


if __name__ == "__main__":
    main()
