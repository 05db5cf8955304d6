"""examples/trl_rewards.py runs: dojang's rewards in TRL's GRPOTrainer."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl")

from dojang import models

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "trl_rewards.py"


def test_the_example_trains_two_steps(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, str(EXAMPLE), models.resolve("dojang-tiny")],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    rewards = result.stdout.partition("mean reward of each step: ")[2]
    assert len(rewards.strip("[] \n").split(",")) == 2
