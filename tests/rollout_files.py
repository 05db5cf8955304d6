"""Rollout files with rows of any content, as a run writes them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dojang.core.rollout_schema import rollout_schema
from dojang.core.run_dir import RunDir

__all__ = ["row", "write"]


def row(step: int, index: int = 0, **values: Any) -> dict[str, Any]:
    plain = {
        "step": step,
        "prompt_index": index,
        "index": index,
        "problem": f"sums/{index}",
        "data_source": "sums",
        "question": "1+1?",
        "prompt": "1+1?",
        "response": "2",
        "tokens": [1, 2, 3],
        "mask": [False, True, True],
        "logprobs": [0.0, -0.1, -0.2],
        "version": step,
        "finish": "stop",
        "role": "policy",
        "turn": 0,
        "outcome": "accepted" if index % 2 == 0 else "wrong",
        "reward": 1.0 - index % 2,
        "reward_parts": [("correct", 1.0 - index % 2)],
        "passed": 1,
        "total": 1,
        "advantage": 0.5,
        "detail": "fine",
        "isolation": "",
    }
    return {"response_length": sum(values.get("mask", plain["mask"]))} | plain | values


def write(run: Path, split: str, step: int, rows: Sequence[dict[str, Any]]) -> Path:
    path = RunDir(run).rollouts(split, step)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows), schema=rollout_schema()), path, compression="zstd")
    return path
