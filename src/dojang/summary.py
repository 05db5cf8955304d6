"""The end of a run: summary.json, the chart, and what a person reads last."""

import json
import textwrap
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console

from dojang.rundir import RunDir, write_atomic
from dojang.track.chart import draw_chart
from dojang.track.files import read_metrics

__all__ = ["Ending", "conclude"]

_SCORE = "val/test_score/"

NEXT = {
    "train {recipe} seed=1": "the same with other random numbers",
    "train {recipe} algo.kl=0.05": "stay closer to the initial model",
    "train --keys": "every setting there is",
    "train smollm2-gsm8k data.path=DIR --dry-run": "a real model on grade-school maths",
}


@dataclass(frozen=True, slots=True)
class Ending:
    """What the summary needs to know besides what is in the run directory."""

    recipe: str
    steps: int
    program: str
    """How to call dojang."""
    command: str
    """How to resume the run."""
    directory: RunDir


def conclude(ending: Ending, console: Console, *, status: str) -> None:
    """Write summary.json and the chart; print the summary."""
    directory = ending.directory
    rows = list(read_metrics(directory.metrics)) if directory.metrics.exists() else []
    scores = {int(row["step"]): _mean_score(row) for row in rows if any(map(_is_score, row))}
    done = max((int(row["step"]) for row in rows), default=0)
    evaluation = {
        "before": scores.get(0),
        "after": scores[max(scores)] if scores else None,
        "metric": "held-out accuracy",
    }
    summary = {
        "recipe": ending.recipe,
        "steps": done,
        "seconds": round(sum(row.get("timing_s/step", 0.0) for row in rows), 1),
        "eval": evaluation,
        "status": status,
        "resume": ending.command,
    }
    write_atomic(directory.summary, json.dumps(summary, indent=2).encode())
    if not rows:
        return
    draw_chart(directory.chart, rows, f"{ending.recipe}: {done} of {ending.steps} steps")
    if status == "finished":
        _report(ending, console, summary, scores)


def _report(ending: Ending, console: Console, summary: dict[str, Any], scores: dict[int, float]) -> None:
    directory = ending.directory
    last = max(scores)

    def say(text: str = "") -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    say()
    say(f"{ending.recipe}: {summary['steps']} steps in {summary['seconds']:.0f} s")
    say(f"held-out accuracy: {scores[0]:.1%} before, {scores[last]:.1%} after")
    for line in _example(directory, last):
        say(line)
    say()
    say(f"chart        {directory.chart}")
    say(f"metrics      {directory.metrics}")
    say(f"rollouts     {directory.path / 'rollouts'} (Parquet, every sample)")
    say(f"best model   {directory.checkpoints / 'best'} (a Hugging Face directory)")
    say()
    say("next:")
    for command, what in NEXT.items():
        say(f"  {ending.program} {command.format(recipe=ending.recipe):<45}{what}")


def _example(directory: RunDir, last: int) -> list[str]:
    """One held-out problem before and after: one that was learned, if there is one."""
    before, after = (
        pq.read_table(
            directory.rollouts("test", step), columns=["problem", "question", "response", "outcome"]
        ).to_pylist()
        for step in (0, last)
    )
    answers = {row["problem"]: row for row in after}
    pairs = [(row, answers[row["problem"]]) for row in before if row["problem"] in answers]
    if not pairs:
        return []
    learned = [pair for pair in pairs if pair[0]["outcome"] != "accepted" and pair[1]["outcome"] == "accepted"]
    old, new = (learned or pairs)[0]
    return [
        "",
        f"problem      {_block(old['question'])}",
        f"before       {_block(old['response'])}   [{old['outcome']}]",
        f"after        {_block(new['response'])}   [{new['outcome']}]",
    ]


def _block(text: str) -> str:
    """Several lines, indented under the first."""
    return textwrap.indent(text.strip()[:600], " " * 13).strip()


def _is_score(name: str) -> bool:
    return name.startswith(_SCORE)


def _mean_score(row: dict[str, float]) -> float:
    scores = [value for name, value in row.items() if _is_score(name)]
    return sum(scores) / len(scores)
