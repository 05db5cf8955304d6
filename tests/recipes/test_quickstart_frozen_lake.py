"""The quickstart over several turns: success on unseen maps rises, and a killed run continues with the same tokens."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import commands
from killed_runs import samples_of_a_killed_run

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

    train = samples_of_a_killed_run(start, tmp_path, 2, PATIENCE_S)
    assert max(len(row["turns"]) for row in train) > 5, "episodes have several turns"
