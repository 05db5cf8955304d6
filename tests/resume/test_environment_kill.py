"""kill -9 of a run with an environment or an agent, a curriculum and overlapping rollouts: resumed, it samples the same
tokens."""

import subprocess
import sys
from pathlib import Path

import pytest

import commands
from killed_runs import samples_of_a_killed_run

FOLDER = Path(__file__).parent
STEPS = 6
PATIENCE_S = 300.0
WORKFLOWS = {
    "environment": ["workflow.name=custom", "workflow.make_with=second_try:SecondTry", "workflow.max_turns=2"],
    "agent": ["workflow.name=agent", "workflow.make_with=second_try:ask_twice"],
}
SETTINGS = [
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


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_a_killed_run_continues_token_exact(tmp_path: Path, workflow: str) -> None:
    def start(directory: Path, *more: str) -> subprocess.Popen[str]:
        settings = [*WORKFLOWS[workflow], *SETTINGS, "--run-dir", str(directory), *more]
        command = [sys.executable, "-m", "dojang", "train", "resume.yaml", *settings]
        return commands.Popen(command, cwd=FOLDER, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    train = samples_of_a_killed_run(start, tmp_path, 4, PATIENCE_S)
    assert any(len(row["turns"]) == 3 for row in train), "no episode had a second turn"
    drawn = sorted({row["prompt_index"] for row in train})
    assert drawn != list(range(len(drawn))), "the curriculum skipped nothing"
