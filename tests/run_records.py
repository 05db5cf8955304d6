"""Runs that can be compared sample by sample, wherever they were made."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

__all__ = ["ALIKE", "Ledger", "ledger", "steps_done"]

Ledger = dict[str, list[dict[str, Any]]]

ALIKE = [
    "quickstart",
    "steps=6",
    "eval.every=6",
    "eval.problems=16",
    "checkpoint.every=2",
    "rollout.prompts_per_step=8",
]
"""A short run, so precise that no token depends on who draws it."""
ALIKE += ["model.dtype=float64"]


def ledger(run: Path) -> Ledger:
    """Every sample of a run. Log-probs differ in the last place, by who computed them;
    results of tests have times."""
    return {
        path.name: [
            {key: value for key, value in row.items() if key not in ("logprobs", "tests")}
            for row in pq.read_table(path).to_pylist()
        ]
        for path in sorted((run / "rollouts").rglob("*.parquet"))
    }


def steps_done(run: Path) -> int:
    """Of training, as far as they are written down."""
    try:
        return sum("critic/rewards/mean" in line for line in (run / "metrics.jsonl").read_text().splitlines())
    except OSError:
        return 0
