"""Trains the tiny model for one step in an environment of another package."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import dojang

GROUPS, SAMPLES = 2, 3


def episodes_of_a_step(run_dir: Path, workflow: dict[str, Any], **settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the rows of the episodes that were trained on; none may have failed."""
    dojang.train(
        "quickstart",
        steps=1,
        run_dir=run_dir,
        workflow={"max_turns": 2, "processes": 1, **workflow},
        rollout={"prompts_per_step": GROUPS, "group_size": SAMPLES, "max_tokens": 24},
        eval={"problems": 1, "every": 10},
        progress=False,
        **settings,
    )
    (rollouts,) = (run_dir / "rollouts").glob("train-*.parquet")
    rows: list[dict[str, Any]] = pq.read_table(rollouts).to_pylist()
    assert len(rows) == GROUPS * SAMPLES
    assert [row["detail"] for row in rows if row["outcome"] == "judge_error"] == []
    return rows
