"""The recipe with Python as a tool: the real model uses it, and a run as small as it goes."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import commands

pytestmark = pytest.mark.slow

RECIPE = "python-tool-smollm2"


def dojang(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dojang", *arguments]
    return commands.run(command, capture_output=True, text=True, timeout=600)


def test_the_untrained_model_uses_the_tool_after_an_example(smollm2: Path, tmp_path: Path) -> None:
    shown = ["--recipe", RECIPE, "--problems", "2", "--output", str(tmp_path / "out")]
    result = dojang("eval", str(smollm2), *shown)
    assert result.returncode == 0, result.stdout + result.stderr
    (found,) = json.loads((tmp_path / "out" / "results.json").read_text())["results"]
    assert found["accuracy"]["value"] == 1.0
    samples = [json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    assert all(f"```output\n{each['reference']}\n```" in each["completion"] for each in samples)


def test_two_steps_on_a_cpu(shallow_smollm2: Path, tmp_path: Path) -> None:
    small = [
        "steps=2",
        "rollout.prompts_per_step=2",
        "rollout.group_size=2",
        "rollout.max_tokens=12",
        "eval.problems=1",
    ]
    # The shipped rewards are never earned by two layers; this one makes both steps learn something.
    rewards = "task.rewards={format: 0.5, correct: 1.0, long: {weight: 1.0, at_least: 6, unit: words}}"
    where = [f"model.name={shallow_smollm2}", "model.device=cpu", "--run-dir", str(tmp_path / "run")]
    result = dojang("train", RECIPE, *small, rewards, *where)
    assert result.returncode == 0, result.stdout + result.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("finished", 2)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(row["actor/logp_gap"] < 1e-3 for row in rows if "actor/grad_norm" in row)
    assert pq.read_table(tmp_path / "run" / "rollouts" / "train-000001.parquet").num_rows == 4
