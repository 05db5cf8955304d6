"""Faults a run will meet one day, each ending in a sentence and an exit code, with nothing lost."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import commands

HERE = Path(__file__).parent
RECIPE = HERE / "resume.yaml"

pytestmark = pytest.mark.slow


def dojang(*arguments: str, rewards: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dojang", *arguments]
    return commands.run(command, capture_output=True, text=True, timeout=300, cwd=rewards)


@pytest.fixture
def rewards(tmp_path: Path) -> Path:
    """A folder with a user's own reward functions; `python -m` puts the working directory on the path."""
    (tmp_path / "mine.py").write_text(
        "def same(problem, text):\n    return 0.25\n\n\n"
        "import os\n\n\ndef broken(problem, text):\n"
        "    if os.path.exists('run/config.yaml'):  # the run has started: it was tried before\n"
        "        raise RuntimeError('the verifier is on holiday')\n    return 0.0\n"
    )
    return tmp_path


def test_a_learning_rate_that_blows_up_stops_the_run_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    result = dojang("train", str(RECIPE), "train.lr=1000", "train.warmup_steps=0", "--run-dir", str(directory))
    assert result.returncode == 6, result.stdout + result.stderr
    assert "NaN, infinite or too large" in result.stderr
    assert "train.lr" in result.stderr
    assert (directory / "checkpoints" / "last" / "state.json").exists()
    assert json.loads((directory / "summary.json").read_text())["status"] == "failed"


def test_rewards_that_never_differ_stop_the_run(rewards: Path) -> None:
    result = dojang(
        "train",
        str(RECIPE),
        "task.rewards={'mine:same': 1.0}",
        "health.patience_steps=2",
        "--run-dir",
        "run",
        rewards=rewards,
    )
    assert result.returncode == 7, result.stdout + result.stderr
    assert "no group had rewards that differ (they were all 0.25)" in result.stderr


def test_a_broken_verifier_stops_the_run_and_is_never_a_reward(rewards: Path) -> None:
    result = dojang(
        "train",
        str(RECIPE),
        "task.rewards={'mine:broken': 1.0, correct: 1.0}",
        "health.patience_steps=2",
        "--run-dir",
        "run",
        rewards=rewards,
    )
    assert result.returncode == 7, result.stdout + result.stderr
    assert "the verifier is on holiday" in result.stderr
    assert not list((rewards / "run" / "rollouts").glob("train-*.parquet"))


def test_a_missing_dataset_says_which_key_to_set(tmp_path: Path) -> None:
    result = dojang("train", "smollm2-gsm8k", f"data.path={tmp_path}/nowhere", "--run-dir", str(tmp_path / "run"))
    assert result.returncode == 3
    assert "data.path=DIR" in result.stderr


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for one checkpoint, but not for two."""
    mount = tmp_path / "disk"
    mount.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(mount)], capture_output=True)
    if made.returncode:
        pytest.skip("a small file system cannot be mounted here (needs root and CAP_SYS_ADMIN)")
    yield mount
    subprocess.run(["umount", "--lazy", str(mount)], check=True)


def test_a_full_disk_is_named_and_loses_nothing(small_disk: Path) -> None:
    directory = small_disk / "run"
    filler = small_disk / "filler"
    filler.write_bytes(bytes(5 * 2**20))
    result = dojang("train", str(RECIPE), "--run-dir", str(directory))
    assert result.returncode == 5, result.stdout + result.stderr
    assert "is full" in result.stderr
    assert f"dojang resume {directory}" in result.stderr
    filler.unlink()
    resumed = dojang("train", str(RECIPE), "--run-dir", str(directory), "--resume")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
