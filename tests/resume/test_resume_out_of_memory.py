"""A run that runs out of GPU memory ends with a message and resumes when there is enough."""

import json
import os
import sys
from pathlib import Path

import pytest

import commands
from dojang.core.errors import TrainingError

REWARD = """
from itertools import count
from pathlib import Path

import torch

from dojang.{module} import {owner}

calls, here = count(), Path(__file__).parent
compute = {owner}.{method}

def scarce(*arguments, **named):
    if (here / "run/checkpoints/step-000002").exists() and not (here / "freed").exists():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 256.00 MiB. GPU 0 has a capacity of 1 GiB.")
    return compute(*arguments, **named)

{owner}.{method} = scarce

def reward(problem, text):
    return next(calls) % 7 / 7
"""

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (("trainer.forward", "Scorer", "forward"), "for an update: set train.gradient_checkpointing=true"),
        (("engine.decoder", "Decoder", "forward"), "for sampling: lower rollout.engine.kv_cache_gb"),
    ],
    ids=["update", "sampling"],
)
def test_out_of_memory_is_told_and_the_run_resumes(tmp_path: Path, place: tuple[str, str, str], said: str) -> None:
    module, owner, method = place
    (tmp_path / "scarce_reward.py").write_text(REWARD.format(module=module, owner=owner, method=method))
    run = tmp_path / "run"
    settings = [
        *("steps=4", "eval.every=4", "checkpoint.every=2", "eval.problems=4"),
        *("rollout.prompts_per_step=4", "rollout.group_size=4", "rollout.max_tokens=8"),
        "task.rewards={'scarce_reward:reward': 1.0}",
    ]
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    options = {"capture_output": True, "text": True, "env": {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}}
    dojang = [sys.executable, "-m", "dojang"]
    found = commands.run([*dojang, "train", "quickstart", *settings, "--run-dir", str(run)], **options)
    assert found.returncode == TrainingError.exit_code, found.stderr
    assert f"dojang: the GPU has too little memory {said}" in found.stderr
    assert "Traceback" not in found.stderr
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert found.stderr.rstrip().endswith(f"resume with: {summary['resume']}")
    (tmp_path / "freed").touch()
    again = commands.run([*dojang, "resume", str(run)], **options)
    assert again.returncode == 0, again.stderr
    assert json.loads((run / "summary.json").read_text())["status"] == "finished"
