"""The quickstart with a critic: PPO teaches the small model to show its work, and goes on where it was stopped."""

import json
import sys
from pathlib import Path

import pytest

import commands

pytestmark = pytest.mark.slow

QUICK = ["algo.name=ppo", "train.critic.lr=1e-3", "eval.every=15", "checkpoint.every=15"]


def train(directory: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "dojang", "train", "quickstart", *QUICK, *arguments, "--run-dir", str(directory)]
    result = commands.run(command, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr


def test_ppo_teaches_the_quickstart(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    train(directory, "steps=15")
    assert json.loads((directory / "summary.json").read_text())["eval"]["after"] > 0.8
    assert (directory / "checkpoints" / "last" / "critic" / ".metadata").is_file()
    train(directory, "steps=16", "--resume")
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    learned = [row for row in rows if "critic/vf_loss" in row]
    assert [row["step"] for row in learned] == list(range(1, 17))
    assert learned[0]["critic/values/mean"] == 0.0
    assert all(abs(row["critic/advantages/mean"]) < 1e-9 for row in learned)
    last = learned[-1]
    assert abs(last["critic/values/mean"] - last["critic/returns/mean"]) < learned[0]["critic/returns/mean"] / 2
