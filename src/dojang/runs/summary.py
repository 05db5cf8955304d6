"""The end of a run: summary.json, the chart and the closing report."""

import json
import logging
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from dojang.config.recipe import shipped
from dojang.core.run_dir import (
    ACCURACY,
    REWARD,
    SOURCE_ACCURACY,
    SOURCE_REWARD,
    SUMMARY_KEYS,
    RunDir,
    evaluation_name,
    write_atomic,
)
from dojang.core.safe_text import safe_text

__all__ = ["Ending", "finish"]

logger = logging.getLogger(__name__)

NEXT = {
    "train {recipe} seed=1": "the same with another random seed",
    "train {recipe} rollout.group_size=16": "a larger group size",
    "train --keys": "list all settings",
    "train smollm2-gsm8k data.path=DIR --dry-run": "a real model on grade-school maths",
}


@dataclass(frozen=True, slots=True)
class Ending:
    """Inputs of the summary that are not in the run directory."""

    recipe: str
    steps: int
    program: str
    """Command that calls dojang."""
    command: str
    """Command that resumes the run."""
    directory: RunDir
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Number of overlong prompts left out, by split."""
    multiple_answers: int | None = None
    """Number of training problems left out by data.filter_multiple_answers, if it is set."""


def finish(
    ending: Ending, console: Console, *, status: str, seconds: float, error: BaseException | None = None
) -> None:
    """Writes summary.json and the chart; prints the report of a finished run, and faults that `dojang explain` finds
    in any run. `error` is the one that ended it."""
    directory = ending.directory
    rows = list(_read_metrics(directory.metrics)) if directory.metrics.exists() else []
    scores, rewards = ({int(row["step"]): row[name] for row in rows if name in row} for name in (ACCURACY, REWARD))
    done = max((int(row["step"]) for row in rows), default=0)
    evaluation = {
        "before": scores.get(0),
        "after": scores[max(scores)] if scores else None,
        "metric": "held-out accuracy",
    }
    values = (ending.recipe, done, round(seconds, 1), evaluation, status, ending.command)
    summary: dict[str, object] = dict(zip(SUMMARY_KEYS, values, strict=True))
    if ending.dropped:
        summary["overlong_prompts"] = dict(ending.dropped)
    if ending.multiple_answers is not None:
        summary["multiple_answers"] = ending.multiple_answers
    if error is not None:
        summary["error"] = {"type": type(error).__name__, "message": str(error)}
    write_atomic(directory.summary, json.dumps(summary, indent=2).encode())
    if rows:
        from dojang.track.chart import draw_chart

        draw_chart(directory.chart, rows, f"{ending.recipe}: {done} of {ending.steps} steps")
    findings = _explain(ending)
    lines: Iterator[str] = iter(())
    if status == "finished":
        changes = [*_changes("held-out", scores, rewards), *_losses(rows), *_benchmarks(rows)]
        lines = _report(ending, done, seconds, scores, changes, findings)
    elif findings:
        lines = iter(("", *findings))
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _explain(ending: Ending) -> list[str]:
    """Faults and warnings of the run, with the first remedy of each."""
    from dojang.diagnosis.diagnose import diagnose
    from dojang.diagnosis.record import RunRecord
    from dojang.diagnosis.report import short_report

    try:
        found = diagnose(RunRecord.read(ending.directory))
    except Exception:  # the report of how the run ended matters more
        logger.exception("cannot explain the run; please report this")
        return []
    return short_report(found, f"{ending.program} explain {shlex.quote(str(ending.directory.path))}")


def _report(
    ending: Ending,
    done: int,
    seconds: float,
    scores: dict[int, float],
    changes: Sequence[str],
    findings: Sequence[str],
) -> Iterator[str]:
    directory = ending.directory
    yield f"\n{ending.recipe}: {done} steps in {seconds:.0f} s"
    yield from changes
    if findings:
        yield "\n" + "\n".join(findings)
    if 0 in scores:
        yield from _example(directory, max(scores))
    yield f"\nchart        {directory.chart}"
    yield f"metrics      {directory.metrics}"
    yield f"rollouts     {directory.path / 'rollouts'} (Parquet, every sample; `{ending.program} show` prints them)"
    best = directory.checkpoints / "best"  # missing if no saved step had its metric
    if best.exists():
        yield f"best model   {best} (a Hugging Face directory; `{ending.program} export` writes a copy to share)"
    if ending.recipe not in shipped() or findings:
        return
    yield "\nnext:"
    for command, what in NEXT.items():
        yield f"  {ending.program} {command.format(recipe=ending.recipe):<45}{what}"


def _changes(name: str, scores: Mapping[int, float], rewards: Mapping[int, float]) -> Iterator[str]:
    if 0 in scores:  # the record of the first evaluation may have been deleted
        yield f"{name} accuracy: {scores[0]:.1%} before, {scores[max(scores)]:.1%} after"
        yield f"{name} reward: {rewards[0]:.3f} before, {rewards[max(rewards)]:.3f} after"


def _losses(rows: Sequence[Mapping[str, float]]) -> Iterator[str]:
    losses = [row["val/loss"] for row in rows if "val/loss" in row]
    if losses:
        yield f"held-out loss: {losses[0]:.4f} before, {losses[-1]:.4f} after"


def _benchmarks(rows: Sequence[Mapping[str, float]]) -> Iterator[str]:
    for benchmark in dict.fromkeys(filter(None, map(evaluation_name, rows))):
        mine = [row for row in rows if evaluation_name(row) == benchmark]
        scores, rewards = (
            {int(row["step"]): row[f"{prefix}{benchmark}"] for row in mine}
            for prefix in (SOURCE_ACCURACY, SOURCE_REWARD)
        )
        yield from _changes(benchmark, scores, rewards)


def _example(directory: RunDir, last: int) -> list[str]:
    """A held-out problem with its answers before and after training; preferably one that became right."""
    import pyarrow.parquet as pq  # slow to import

    paths = [directory.rollouts("test", step) for step in (0, last)]
    if not all(path.exists() for path in paths):
        return []
    columns = ["problem", "question", "response", "outcome"]
    before, after = (pq.read_table(path, columns=columns).to_pylist() for path in paths)
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


def _read_metrics(path: Path) -> Iterator[dict[str, float]]:
    with path.open() as file:
        for line in file:
            yield json.loads(line)


def _block(text: str) -> str:
    """Indents all lines but the first; escapes control characters."""
    return textwrap.indent(safe_text(text.strip()[:600]), " " * 13).strip()
