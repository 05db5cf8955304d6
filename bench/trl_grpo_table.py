"""Results of trl_grpo.py: reads what its stages left, and makes the rows and the table."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dojang.evaluation.comparison import Comparison
from machine import Row
from trl_grpo_trainer import prompt_digest

__all__ = ["BASE", "OURS", "THEIRS", "markdown", "read", "table_rows"]

OURS = {"dojang": "dojang", "dojang-sync": "dojang, loop.mode=sync"}
THEIRS = {"trl": "TRL"}
BASE = "base"
"""The model before training, in evaluations."""

Side = dict[str, Any]
"""Figures of one trainer: seconds of its process, peak memory in MiB, and a record of every step."""
_LESS_IS_BETTER = ("s", "MiB")
_NEITHER = ("mean completion length", "groups without a signal")


def read(output: Path) -> dict[str, Any]:
    """Returns the figures of every trainer, and the accuracy of every model, that the directory has."""
    sides: dict[str, Side] = {}
    for name in (*OURS, *THEIRS):
        if (process := output / f"{name}.process.json").exists():
            steps = _trl_steps(output / name) if name in THEIRS else _dojang_steps(output / name)
            memory = json.loads((output / f"{name}.memory.json").read_text())
            sides[name] = {**json.loads(process.read_text()), "memory": memory, **steps}
    accuracy = {
        name: _accuracy(folder)
        for name in (BASE, *OURS, *THEIRS)
        if (folder := output / f"eval-{name}" / "results.json").exists()
    }
    return {"sides": sides, "accuracy": accuracy, **_differences(output, accuracy), **_same_prompts(sides)}


def _dojang_steps(run: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "timing_s/step" in line]
    return {
        "steps": [
            {
                "seconds": line["timing_s/step"],
                "rollout": line["timing_s/rollout"],
                "update": sum(line.get(f"timing_s/{stage}", 0.0) for stage in ("update", "publish", "load")),
                "length": line["response_length/mean"],
                "reward": line["critic/rewards/mean"],
                "zero_variance": line["groups/zero_variance"] / line["groups/total"],
                "loss": line.get("actor/loss"),  # a step without a signal has no update
                "lr": line.get("actor/lr"),
                "staleness": line["staleness/mean"],
                "prompts": _prompts(run / "rollouts" / f"train-{line['step']:06d}.parquet"),
            }
            for line in steps
        ]
    }


def _prompts(rollouts: Path) -> str:
    import pyarrow.parquet

    rows = pyarrow.parquet.read_table(rollouts, columns=["prompt_index", "tokens", "mask"]).to_pylist()
    prompts = {row["prompt_index"]: row["tokens"][: row["mask"].index(True)] for row in rows}
    return prompt_digest([prompts[index] for index in sorted(prompts)])


def _trl_steps(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "steps.json").read_text())
    return found


def _accuracy(results: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(results.read_text())["results"][0]
    return {"length": found["length"], **found["accuracy"]}


def _differences(output: Path, accuracy: dict[str, Any]) -> dict[str, Any]:
    """Paired differences in accuracy to TRL's model, with their 95% intervals."""
    if "trl" not in accuracy:
        return {}
    gaps = {
        name: Comparison.of(output / "eval-trl", output / f"eval-{name}").pairs[0].difference
        for name in OURS
        if name in accuracy
    }
    return {"differences": {name: {"mean": gap.mean, "low": gap.low, "high": gap.high} for name, gap in gaps.items()}}


def _same_prompts(sides: dict[str, Side]) -> dict[str, Any]:
    """Whether all trainers read the same token ids in the same order; not told with fewer than two trainers."""
    orders = {tuple(step["prompts"] for step in side["steps"]) for side in sides.values()}
    return {"same_prompts": len(orders) == 1} if len(sides) > 1 else {}


def table_rows(found: dict[str, Any]) -> list[Row]:
    """A row for every figure of every dojang run beside TRL; none before both are there."""
    sides = found["sides"]
    return [row for name in OURS if name in sides for theirs in THEIRS if theirs in sides for row in _rows(name, found)]


def _rows(name: str, found: dict[str, Any]) -> list[Row]:
    mine, theirs = found["sides"][name], found["sides"]["trl"]
    timed = len(_timed(mine))
    median = f"median of {timed} steps" if timed > 1 else "one step"
    saving = "loading and saving included; dojang also saves optimizer states"
    overlaps = any(step["staleness"] for step in mine["steps"])
    split = f"{median}; dojang's rollout and update overlap" if overlaps else median
    figures = [
        ("step", _median(mine, "seconds"), _median(theirs, "seconds"), "s", median),
        ("rollout: generation and rewards", _median(mine, "rollout"), _median(theirs, "rollout"), "s", split),
        ("update", _median(mine, "update"), _median(theirs, "update"), "s", split),
        ("first step", mine["steps"][0]["seconds"], theirs["steps"][0]["seconds"], "s", ""),
        ("whole process", mine["seconds"], theirs["seconds"], "s", saving),
    ]
    for kind, case in (("allocated", "peak GPU memory"), ("reserved", "peak GPU memory, reserved"), ("rss", "")):
        if kind in mine["memory"] and kind in theirs["memory"]:
            case = case or "peak resident memory"
            figures.append((case, mine["memory"][kind], theirs["memory"][kind], "MiB", ""))
    samples = mine["samples_per_step"]
    figures += [
        ("completion tokens per second", _speed(mine, samples), _speed(theirs, samples), "tokens/s", median),
        ("mean completion length", _mean(mine, "length"), _mean(theirs, "length"), "tokens", "all steps"),
        ("mean reward, last step", mine["steps"][-1]["reward"], theirs["steps"][-1]["reward"], "", ""),
        ("groups without a signal", _mean(mine, "zero_variance"), _mean(theirs, "zero_variance"), "", "all steps"),
    ]
    if {name, "trl"} <= {*found["accuracy"]}:
        figures.append(_accuracies(name, found))
    return [_row(OURS[name], *figure) for figure in figures]


def _accuracies(name: str, found: dict[str, Any]) -> tuple[str, float, float, str, str]:
    gap, accuracy = found["differences"][name], found["accuracy"]
    notes = f"difference {gap['mean']:+.1%} [{gap['low']:+.1%}, {gap['high']:+.1%}]"
    if BASE in accuracy:
        notes += f"; before training {accuracy[BASE]['value']:.1%}"
    case = f"accuracy on {accuracy['trl']['problems']} held-out problems"
    return case, accuracy[name]["value"], accuracy["trl"]["value"], "", notes


def _row(subject: str, case: str, value: float, baseline: float, unit: str, notes: str) -> Row:
    better, worse = (baseline, value) if unit in _LESS_IS_BETTER else (value, baseline)
    ratio = None if case in _NEITHER or not worse else better / worse
    return Row(case, subject, "TRL", value, baseline, unit, ratio, notes)


def _timed(side: Side) -> Sequence[dict[str, Any]]:
    """Steps that count: the first one also warms up, unless it is the only one."""
    steps: list[dict[str, Any]] = side["steps"]
    return steps[1:] or steps


def _median(side: Side, key: str) -> float:
    return statistics.median(step[key] for step in _timed(side))


def _mean(side: Side, key: str) -> float:
    return statistics.fmean(step[key] for step in side["steps"])


def _speed(side: Side, samples: int) -> float:
    return statistics.median(samples * step["length"] / step["seconds"] for step in _timed(side))


def markdown(rows: Sequence[Row], found: dict[str, Any]) -> str:
    """Returns a table for every dojang run."""
    tables = []
    for subject in dict.fromkeys(row.subject for row in rows):
        lines = [f"| | {subject} | TRL | ratio | |", "|---|---|---|---|---|"]
        for row in rows:
            if row.subject == subject:
                mine, theirs = _shown(row, row.value), _shown(row, row.baseline_value)
                ratio = "" if row.ratio is None else f"{row.ratio:.3g}x"
                lines.append(f"| {row.case} | {mine} | {theirs} | {ratio} | {row.notes} |")
        tables.append("\n".join(lines))
    if not tables:
        tables.append(f"no table yet: results of {', '.join(found['sides']) or 'no trainer'} alone")
    if found.get("same_prompts") is False:
        tables.append("The trainers read different prompts: accuracy and lengths do not compare.")
    return "\n\n".join(tables) + "\n"


def _shown(row: Row, value: float) -> str:
    if row.case.startswith(("accuracy", "groups")):
        return f"{value:.1%}"
    return f"{value:,.3g} {row.unit}".strip() if abs(value) < 100 else f"{value:,.0f} {row.unit}".strip()
