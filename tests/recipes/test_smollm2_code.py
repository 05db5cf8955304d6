"""The recipe for a real model whose programs are judged, as small as it goes: two steps on a CPU."""

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
    "rollout.prompts_per_step=1",
    "rollout.group_size=4",
    "rollout.max_tokens=40",  # room for a short function and its fences
    "eval.problems=1",
    "model.device=cpu",
]


@pytest.fixture(scope="module")
def recipe(smollm2: Path) -> str:
    return "smollm2-code"


def dojang(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dojang", "train", *arguments]
    return commands.run(command, capture_output=True, text=True, timeout=600, cwd=cwd)


def test_the_dry_run_names_model_and_data(recipe: str, tmp_path: Path) -> None:
    result = dojang(recipe, "--dry-run", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "SmolLM2-135M-Instruct" in result.stdout
    assert "functions: 1,024 training and 256 held-out problems" in result.stdout


def test_two_steps_on_a_cpu(recipe: str, tmp_path: Path) -> None:
    result = dojang(recipe, *SMALL, "--run-dir", "run", cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("finished", 2)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    learned = [row for row in rows if "actor/grad_norm" in row]
    assert learned
    assert all(row["actor/logp_gap"] < 1e-3 for row in learned)  # the engine and the trainer agree on the policy
    samples = []
    for step in (1, 2):
        samples += pq.read_table(tmp_path / "run" / "rollouts" / f"train-{step:06d}.parquet").to_pylist()
    assert len(samples) == 8
    price = {"no_answer": -1.0, "compile_error": -0.5, "time_limit": 0.0}
    for sample in samples:
        assert sample["outcome"] != "judge_error"
        assert sample["reward"] == price.get(sample["outcome"], sample["passed"] / 6)
    assert any(sample["isolation"] for sample in samples)  # some program was run
