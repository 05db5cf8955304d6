"""The asynchronous soak finds lost, repeated and stale prompts in the records of a run, and processes left behind."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from async_soak_run import Shape, SoakRun, record_violations, sampled_tokens

SHAPE = Shape(steps=3, prompts=2, group=2, lag=1)


def write_run(folder: Path, batches: list[list[int]], versions: list[int], staleness: list[int]) -> None:
    """Records of a run whose steps learned these prompts, sampled with these versions."""
    (folder / "rollouts").mkdir(parents=True)
    rows: list[dict[str, Any]] = [{"step": 0, "val/accuracy": 0.5}]
    rows += [{"step": step, "staleness/max": float(each)} for step, each in enumerate(staleness, 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for step, (prompts, version) in enumerate(zip(batches, versions, strict=True), 1):
        samples = [
            {"prompt_index": prompt, "index": index, "tokens": [prompt, index], "version": version}
            for prompt in prompts
            for index in range(SHAPE.group)
        ]
        pq.write_table(pa.Table.from_pylist(samples), folder / "rollouts" / f"train-{step:06d}.parquet")


@pytest.mark.parametrize(
    ("batches", "versions", "staleness", "expected"),
    [
        ([[0, 1], [2, 3], [4, 5]], [0, 0, 1], [0, 1, 1], []),
        ([[0, 1], [2, 3], [4]], [0, 0, 1], [0, 1, 1], ["prompts [5] are missing"]),
        ([[0, 1], [2, 1], [4, 5]], [0, 0, 1], [0, 1, 1], ["prompts [3] are missing", "prompts [1] are learned twice"]),
        ([[0, 1], [2, 3], [4, 5, 6]], [0, 0, 1], [0, 1, 1], ["prompts [6] are not of this run"]),
        ([[0, 1], [2, 3], [4, 4, 5]], [0, 0, 1], [0, 1, 1], ["prompt 4 has 4 samples"]),
        ([[0, 1], [2, 3], [4, 5]], [0, 0, 0], [0, 1, 1], ["step 3 has samples of version 0"]),
        ([[0, 1], [2, 3], [4, 5]], [0, 0, 1], [0, 1, 2], ["step 3 has a staleness of 2"]),
        ([[0, 1], [2, 3], [4, 5]], [0, 0, 1], [0, 1], ["steps [1, 2] in metrics.jsonl, not 1 to 3"]),
    ],
)
def test_records_that_lack_repeat_or_are_stale_are_found(
    tmp_path: Path, batches: list[list[int]], versions: list[int], staleness: list[int], expected: list[str]
) -> None:
    write_run(tmp_path, batches, versions, staleness)
    assert record_violations(tmp_path, SHAPE) == expected


def test_tokens_are_compared_by_step(tmp_path: Path) -> None:
    write_run(tmp_path / "one", [[0, 1], [2, 3]], [0, 0], [0, 1])
    write_run(tmp_path / "same", [[0, 1], [2, 3]], [0, 0], [0, 1])
    write_run(tmp_path / "other", [[0, 1], [2, 4]], [0, 0], [0, 1])
    assert sampled_tokens(tmp_path / "one") == sampled_tokens(tmp_path / "same")
    assert sampled_tokens(tmp_path / "one") != sampled_tokens(tmp_path / "other")


def test_a_process_with_the_token_of_a_run_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("async_soak_run.LEAVE_S", 0.2)
    run = SoakRun(tmp_path / "run")
    assert run.left() == []
    environment = {**os.environ, "DOJANG_ROLLOUT_TOKEN": run.token}
    command = [sys.executable, "-c", "print(flush=True); import time; time.sleep(60)"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as orphan:
        assert orphan.stdout is not None
        orphan.stdout.readline()
        assert [pid for pid, _ in run.left()] == [orphan.pid]
        run.close()
        assert orphan.wait(10) == -9
