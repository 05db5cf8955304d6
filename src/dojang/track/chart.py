"""The reward and the evaluation score over the steps, as a PNG."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from dojang.rundir import SOURCE_SCORE, write_atomic

__all__ = ["draw_chart"]


def draw_chart(path: Path, rows: Sequence[Mapping[str, float]], title: str) -> None:
    """Draw what metrics.jsonl says."""
    from matplotlib.figure import Figure  # 0.3 s to import, needed once, at the very end

    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    rewards = [(row["step"], row["critic/rewards/mean"]) for row in rows if "critic/rewards/mean" in row]
    if rewards:
        axes.plot(*zip(*rewards, strict=True), label="mean reward of a training step")
    sources = sorted({name for row in rows for name in row if name.startswith(SOURCE_SCORE)})
    for source in sources:
        scores = [(row["step"], row[source]) for row in rows if source in row]
        label = f"held-out accuracy, {source.removeprefix(SOURCE_SCORE)}"
        axes.plot(*zip(*scores, strict=True), marker="o", linestyle="--", label=label)
    axes.set_xlabel("step")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend()
    write_atomic(path, lambda aside: figure.savefig(aside, format="png"))
