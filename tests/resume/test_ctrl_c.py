"""A second Ctrl-C: the run stops at once, and says what is saved and how to resume."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import commands

PATIENCE_S = 300.0
REWARD = """
import asyncio
from itertools import count
from pathlib import Path

calls, saved = count(), Path(__file__).parent / "run/checkpoints/step-000002"

async def hangs_after_a_checkpoint(problem, text):
    if saved.exists():
        await asyncio.sleep(600)
    return next(calls) % 7 / 7
"""

pytestmark = pytest.mark.slow


def started(folder: Path) -> subprocess.Popen[str]:
    (folder / "hanging_reward.py").write_text(REWARD)
    settings = [
        *("steps=8", "eval.every=8", "checkpoint.every=2", "eval.problems=4", "loop.mode=overlap"),
        *("rollout.prompts_per_step=4", "rollout.group_size=4", "rollout.max_tokens=8"),
        "task.rewards={'hanging_reward:hangs_after_a_checkpoint': 1.0}",
    ]
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return commands.Popen(
        [sys.executable, "-m", "dojang", "train", "quickstart", *settings, "--run-dir", str(folder / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )


def test_a_second_ctrl_c_says_what_is_saved_and_how_to_resume(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = started(tmp_path)
    deadline = time.monotonic() + PATIENCE_S
    # The rollouts of the fourth batch, with the weights of the checkpoint, hang; the third was sampled before it.
    while not any(json.loads(line)["step"] == 3 for line in lines(run)):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    time.sleep(2)
    assert process.poll() is None  # it waits for rollouts that only older weights could repeat
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "stopping: saving a checkpoint first; Ctrl-C again stops at once" in output
    assert "stopped at once; the last checkpoint is of step 2: later steps are lost and repeat on resume" in output
    assert "Traceback" not in output
    assert f"dojang explain {run}" in output
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert output.rstrip().endswith(f"resume with: {summary['resume']}")


def lines(run: Path) -> list[str]:
    path = run / "metrics.jsonl"
    return path.read_text().splitlines() if path.exists() else []
