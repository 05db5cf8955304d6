"""Share of groups without a signal, and held-out accuracy, with a curriculum beside uniform drawing.

    python bench/curriculum.py OUT_DIR --seeds 3

Each pair of runs trains dojang-tiny on the CPU, on the same problems with as many samples: sums of two digits, which it
learns, and sums of more digits, which stay too hard. Held-out problems are other sums of two digits. OUT_DIR keeps the
problems and the runs; finished runs are not repeated. Settings after the options go to the runs; an OUT_DIR with runs
of other settings is refused.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from dojang_process import curve, train
from machine import Row, arguments, report

SOLVABLE, TOO_HARD, HELD_OUT = 48, 208, 256
DIGITS_TOO_HARD = (4, 5, 6, 7)
STEPS, EVERY, KEEP = 64, 8, 0.1
PARTS = ("first", "second", "last")
"""Thirds of a run."""


def write_problems(folder: Path) -> None:
    """Writes the problems of training and the held-out ones."""
    from dojang.data.arithmetic import ArithmeticConfig

    solvable = ArithmeticConfig(train_size=SOLVABLE, test_size=HELD_OUT)
    hard = [
        each
        for digits in DIGITS_TOO_HARD
        for each in ArithmeticConfig(digits=digits, train_size=TOO_HARD // len(DIGITS_TOO_HARD)).read("train")
    ]
    folder.mkdir(parents=True, exist_ok=True)
    for name, problems in (("train", [*solvable.read("train"), *hard]), ("test", solvable.read("test"))):
        rows = ({"id": each.id, "prompt": each.messages[-1].content, "answer": each.reference} for each in problems)
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(folder: Path, seed: int, keep: float, settings: list[str]) -> Path:
    """Trains once, and returns the run directory."""
    directory = folder / f"seed-{seed}-keep-{100 * keep:g}"
    data = [f"data.{name}={folder / f'{name}.jsonl'}" for name in ("train", "test")]
    own = [f"seed={seed}", f"rollout.curriculum_keep={keep}", f"steps={STEPS}", "model.device=cpu"]
    evals = [f"eval.every={EVERY}", f"eval.problems={HELD_OUT}"]
    train("quickstart", directory, "data.name=files", "data.id=id", *data, *own, *evals, *settings)
    return directory


def thirds(values: Mapping[int, float]) -> list[float]:
    """Means over the thirds of a run."""
    size = len(values) // len(PARTS)
    found = [values[step] for step in sorted(values)]
    return [fmean(found[part * size : (part + 1) * size]) for part in range(len(PARTS))]


def shares(directory: Path) -> list[float]:
    """Share of groups without a signal in each third of a run."""
    total = curve(directory, "groups/total")
    return thirds({step: count / total[step] for step, count in curve(directory, "groups/zero_variance").items()})


def compare(seed: int, curriculum: Path, uniform: Path) -> list[Row]:
    """Returns one row per third of the run for the share without a signal, then for held-out accuracy."""
    rows = []
    for part, ours, theirs in zip(PARTS, shares(curriculum), shares(uniform), strict=True):
        subject = "groups without a signal, curriculum"
        ratio = theirs / ours if ours else None
        rows.append(Row(f"seed {seed}, {part} third", subject, "uniform", ours, theirs, "share", ratio))
    scores = [curve(each, "val/accuracy") for each in (curriculum, uniform)]
    for step in sorted(scores[0])[1:]:
        ours, theirs = (found[step] for found in scores)
        ratio = ours / theirs if theirs else None
        rows.append(
            Row(f"seed {seed}, step {step}", "held-out accuracy, curriculum", "uniform", ours, theirs, "share", ratio)
        )
    return rows


def table(rows: list[Row]) -> str:
    """Returns the rows as Markdown, with the means over the seeds."""
    by_case: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        by_case.setdefault((row.subject, row.case.partition(", ")[2]), []).append(row)
    lines = ["| | | uniform | curriculum |", "|---|---|---|---|"]
    for (subject, case), found in by_case.items():
        cells: list[Any] = []
        for values in ([each.baseline_value for each in found], [each.value for each in found]):
            cells.append(f"{fmean(values):.0%} ({', '.join(f'{each:.0%}' for each in values)})")
        lines.append(f"| {subject.partition(',')[0]} | {case} | {' | '.join(cells)} |")
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    made = arguments(__doc__ or "")
    made.add_argument("folder", metavar="OUT_DIR", type=Path)
    made.add_argument("--seeds", type=int, default=3)
    made.add_argument("--keep", type=float, default=KEEP)
    made.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    return made


def main() -> None:
    options = parser().parse_args()
    folder = options.folder.absolute()
    write_problems(folder)
    rows = []
    for seed in range(options.seeds):
        uniform, curriculum = (run(folder, seed, keep, options.settings) for keep in (1.0, options.keep))
        rows += compare(seed, curriculum, uniform)
    report("curriculum", rows, options.json)
    if not options.json:
        print(table(rows))


if __name__ == "__main__":
    main()
