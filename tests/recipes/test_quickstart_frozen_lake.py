"""The quickstart over several turns: success on unseen maps rises, and a killed run continues with the same tokens."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import commands

pytestmark = pytest.mark.slow

PATIENCE_S = 1800.0
SHORT = [
    *("steps=8", "rollout.prompts_per_step=8", "train.lr=5e-4"),
    *("eval.every=8", "eval.problems=48", "checkpoint.every=8"),
]
SMALL = ["steps=4", "rollout.prompts_per_step=2", "eval.every=4", "eval.problems=8", "checkpoint.every=1"]


def command(directory: Path, *settings: str) -> list[str]:
    asked = ["quickstart-frozen-lake", "model.device=cpu", *settings, "--run-dir", str(directory)]
    return [sys.executable, "-m", "dojang", "train", *asked]


def finish(process: subprocess.Popen[str]) -> None:
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output


def rollouts(directory: Path) -> dict[str, list[dict[str, Any]]]:
    columns = ["prompt_index", "index", "problem", "tokens", "mask", "logprobs", "reward", "advantage", "turns"]
    files = sorted((directory / "rollouts").glob("*.parquet"))
    return {path.name: pq.read_table(path, columns=columns).to_pylist() for path in files}


def test_training_doubles_the_success_on_unseen_maps(tmp_path: Path) -> None:
    result = commands.run(command(tmp_path / "run", *SHORT), capture_output=True, text=True, timeout=PATIENCE_S)
    assert result.returncode == 0, result.stdout + result.stderr
    score = json.loads((tmp_path / "run" / "summary.json").read_text())["eval"]
    assert 0.05 < score["before"] < 0.4
    assert score["after"] > max(0.5, 2 * score["before"])  # of 48 maps: about 12 before, 40 after
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["judge/errors"] for row in rows if "judge/errors" in row] == [0.0] * 8
    assert all(row["episodes/turns/mean"] > 1.5 for row in rows if "judge/errors" in row)


def test_a_killed_run_continues_token_exact(tmp_path: Path) -> None:
    def start(directory: Path, *more: str) -> subprocess.Popen[str]:
        asked = [*command(directory, *SMALL), *more]
        return commands.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    finish(start(tmp_path / "untouched"))
    killed = tmp_path / "killed"
    process = start(killed)
    deadline = time.monotonic() + PATIENCE_S
    while len(list((killed / "rollouts").glob("train-*"))) < 2:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "the run made no progress"
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    finish(start(killed, "--resume"))
    expected, played = rollouts(tmp_path / "untouched"), rollouts(killed)
    assert played.keys() == expected.keys()
    for name, rows in expected.items():
        assert played[name] == rows, f"{name} differs"
    train = [row for name, rows in expected.items() if name.startswith("train") for row in rows]
    assert max(len(row["turns"]) for row in train) > 5, "episodes have several turns"
