"""A run of two models that is resumed does what one does that was never interrupted, whatever the clock does."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

import commands

HERE = Path(__file__).parent
PATIENCE_S = 300.0

pytestmark = pytest.mark.slow


def play(directory: Path, *more: str, ranks: int = 1) -> str:
    several = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    command = [sys.executable, *several, str(HERE / "two_models_command.py"), "train", str(HERE / "two_models.yaml")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = (subprocess.run if several else commands.run)(  # the ranks start as those of any torchrun
        [*command, "--run-dir", str(directory), *more],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def figures(directory: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("timing_s", "perf"))} for row in rows]


def samples(directory: Path) -> dict[str, list[dict[str, Any]]]:
    columns = ["prompt_index", "index", "role", "tokens", "logprobs", "reward", "advantage", "version", "outcome"]
    paths = sorted((directory / "rollouts").glob("*.parquet"))
    return {path.name: pq.read_table(path, columns=columns).to_pylist() for path in paths}


def record(directory: Path) -> dict[str, Any]:
    """Everything that must not depend on whether the run was interrupted."""
    found: dict[str, Any] = {"samples": samples(directory), "figures": figures(directory)}
    for role, folder in (("coder", "checkpoints/last"), ("tester", "checkpoints/last/tester")):
        weights = load_file(directory / folder / "model.safetensors")
        found[role] = {name: hashlib.sha256(each.tobytes()).hexdigest() for name, each in weights.items()}
        parts = sorted((directory / folder / "optimizer").glob("*.distcp"))
        found[f"{role}'s optimizer"] = [hashlib.sha256(part.read_bytes()).hexdigest() for part in parts]
    return found


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("straight") / "run"
    play(directory)
    return directory


def test_rewards_of_both_roles_differ_within_a_step(straight: Path) -> None:
    for step in (1, 2, 3):
        rows = samples(straight)[f"train-{step:06d}.parquet"]
        for role in ("coder", "tester"):
            assert len({row["reward"] for row in rows if row["role"] == role}) > 1
        assert any(row["role"] == "coder" and row["index"] >= 4 for row in rows)  # second attempts
    assert {row["role"] for row in samples(straight)["test-000000.parquet"]} == {"policy"}
    learned = [row for row in figures(straight) if "actor/loss" in row]
    assert all(row["tester/actor/grad_norm"] > 0 and row["actor/grad_norm"] > 0 for row in learned)
    assert [(row["actor/lr"], row["tester/actor/lr"]) for row in learned] == [(5e-4, 1e-3)] * 3
    assert all(row[f"{role}actor/logprob_diff/max"] < 1e-3 for row in learned for role in ("", "tester/"))
    found = record(straight)
    assert found["coder"] != found["tester"]


def test_a_resumed_run_samples_the_same_tokens(straight: Path, tmp_path: Path) -> None:
    play(tmp_path / "run", "steps=1")
    assert "resuming after step 1" in play(tmp_path / "run", "steps=3", "--resume")
    mine, theirs = record(tmp_path / "run"), record(straight)
    mine["samples"].pop("test-000001.parquet")  # a shorter run ends with an evaluation
    mine["figures"] = [row for row in mine["figures"] if not ("val/accuracy" in row and row["step"] == 1)]
    assert mine == theirs


def test_two_processes_learn_what_one_does(straight: Path, tmp_path: Path) -> None:
    play(tmp_path / "run", "steps=1", ranks=2)
    (mine,) = (row for row in figures(tmp_path / "run") if "actor/loss" in row)
    theirs = next(row for row in figures(straight) if "actor/loss" in row)
    assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-5)
    play(tmp_path / "run", "steps=2", "--resume")
