"""The quickstart that writes programs: they are run, and the small model learns to make numbers of what it reads."""

import json
import sys
from pathlib import Path

import pytest

import commands

pytestmark = pytest.mark.slow


def test_training_raises_the_pass_rate(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    asked = ["quickstart-code", "steps=25", "eval.every=25", "eval.problems=64", "checkpoint.every=25"]
    command = [sys.executable, "-m", "dojang", "train", *asked, "--run-dir", str(directory)]
    result = commands.run(command, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    score = json.loads((directory / "summary.json").read_text())["eval"]
    assert 0.05 < score["before"] < 0.4
    assert score["after"] > 0.9
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    learned = [row for row in rows if "judge/errors" in row]
    assert [row["judge/errors"] for row in learned] == [0.0] * 25
