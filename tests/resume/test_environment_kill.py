"""kill -9 of a run with an environment, a curriculum and overlapping rollouts: resumed, it samples the same tokens."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import commands

FOLDER = Path(__file__).parent
STEPS = 6
PATIENCE_S = 300.0
SETTINGS = [
    "workflow.name=custom",
    "workflow.make_with=second_try:SecondTry",
    "workflow.max_turns=2",
    "data.limit=6",
    "rollout.group_size=3",
    "rollout.curriculum_keep=0.2",
    "loop.mode=overlap",
    f"steps={STEPS}",
    "train.minibatches=1",
    "algo.kl_coef=0",
    "eval.every=3",
]

pytestmark = pytest.mark.slow


def start(directory: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dojang", "train", "resume.yaml", *SETTINGS, "--run-dir", str(directory), *more]
    return commands.Popen(command, cwd=FOLDER, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str]) -> None:
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output


def rollouts(directory: Path) -> dict[str, list[dict[str, Any]]]:
    columns = ["prompt_index", "index", "problem", "tokens", "mask", "logprobs", "reward", "advantage", "turns"]
    files = sorted((directory / "rollouts").glob("*.parquet"))
    return {path.name: pq.read_table(path, columns=columns).to_pylist() for path in files}


def test_a_killed_run_with_an_environment_continues_token_exact(tmp_path: Path) -> None:
    finish(start(tmp_path / "untouched"))
    expected = rollouts(tmp_path / "untouched")
    killed = tmp_path / "killed"
    process = start(killed)
    deadline = time.monotonic() + PATIENCE_S
    while len(list((killed / "rollouts").glob("train-*"))) < 4:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "the run made no progress"
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    finish(start(killed, "--resume"))
    played = rollouts(killed)
    assert played.keys() == expected.keys()
    for name, rows in expected.items():
        assert played[name] == rows, f"{name} differs"
    train = [row for name, rows in expected.items() if name.startswith("train") for row in rows]
    assert any(len(row["turns"]) == 3 for row in train), "no episode had a second try"
    drawn = sorted({row["prompt_index"] for row in train})
    assert drawn != list(range(len(drawn))), "the curriculum skipped nothing"
