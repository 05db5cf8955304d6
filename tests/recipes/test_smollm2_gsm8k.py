"""The recipe for a real model on real data, as small as it goes: two steps on a CPU."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import commands

pytestmark = pytest.mark.slow

SMALL = [
    "steps=2",
    "data.shots=0",
    "rollout.prompts_per_step=1",
    "rollout.group_size=2",
    "rollout.max_tokens=12",
    "eval.problems=1",
    "model.device=cpu",
    # The shipped rewards are rarely earned in a dozen tokens; this one makes both steps learn something.
    "task.rewards={format: 0.5, correct: 1.0, 'mine:length': 1.0}",
]


@pytest.fixture(scope="module")
def arguments(shared_data: Path, smollm2: Path) -> list[str]:
    return ["smollm2-gsm8k", f"data.path={shared_data / 'gsm8k'}"]


def dojang(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dojang", "train", *arguments]
    return commands.run(command, capture_output=True, text=True, timeout=600, cwd=cwd)


def test_the_dry_run_names_model_and_data(arguments: list[str], tmp_path: Path) -> None:
    result = dojang(*arguments, "--dry-run", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "SmolLM2-135M-Instruct" in result.stdout
    assert "7,473 training and 1,319 held-out problems" in result.stdout


def test_two_steps_on_a_cpu(arguments: list[str], shallow_smollm2: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def length(problem, text):\n    return float(len(text))\n")
    result = dojang(*arguments, *SMALL, f"model.name={shallow_smollm2}", "--run-dir", "run", cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("finished", 2)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    learned = [row for row in rows if "actor/grad_norm" in row]
    assert learned
    assert all(row["actor/logp_gap"] < 1e-3 for row in learned)  # the engine and the trainer agree on the policy
    for step in (1, 2):
        assert pq.read_table(tmp_path / "run" / "rollouts" / f"train-{step:06d}.parquet").num_rows == 2
