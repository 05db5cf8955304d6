"""kill -9 of a run with an environment, a curriculum and overlapping rollouts: resumed, it samples the same tokens."""

import subprocess
import sys
from pathlib import Path

import pytest

import commands
from killed_runs import samples_of_a_killed_run

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


def test_a_killed_run_with_an_environment_continues_token_exact(tmp_path: Path) -> None:
    train = samples_of_a_killed_run(start, tmp_path, 4, PATIENCE_S)
    assert any(len(row["turns"]) == 3 for row in train), "no episode had a second try"
    drawn = sorted({row["prompt_index"] for row in train})
    assert drawn != list(range(len(drawn))), "the curriculum skipped nothing"
