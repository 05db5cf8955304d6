"""Asynchronous runs with random faults learn from every prompt exactly once (bench/async_soak.py, in short).

DOJANG_KILL_SEED repeats the moments of a failure.
"""

import os
from pathlib import Path
from random import SystemRandom

import pytest

import commands
from async_soak import Soak
from async_soak_run import Shape

pytestmark = pytest.mark.slow
FAULTS = 3


@pytest.mark.parametrize("kind", ["worker", "trainer", "all", "stop", "link", "join", "disk", "overlap"])
def test_every_prompt_is_learned_once_after_faults(kind: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("DOJANG_KILL_SEED") or SystemRandom().randrange(10**6))
    # Workers that join are forked, and so start quickly; those of a trainer import everything anew.
    soak = Soak(tmp_path, seed, shape=Shape(steps=12), local=0, joined=2, popen=commands.Popen)
    result = soak.soak(kind, FAULTS)
    if result.skipped:
        pytest.skip(result.skipped)
    assert result.violations == [], f"seed {seed}"
    assert result.faults == FAULTS
