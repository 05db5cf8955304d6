"""Asynchronous runs with random faults learn from every prompt exactly once (bench/async_soak.py, in short).

DOJANG_KILL_SEED repeats the moments of a failure.
"""

import os
from pathlib import Path
from random import SystemRandom

import pytest

import commands
from async_soak import IN_TURN, Soak
from async_soak_run import Shape

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("kind", "faults"),
    [
        ("mixed", len(IN_TURN)),
        ("overlap", 3),
        pytest.param("mixed", 3 * len(IN_TURN), marks=pytest.mark.soak),
        pytest.param("link", 3, marks=pytest.mark.soak),
        pytest.param("disk", 3, marks=pytest.mark.soak),
    ],
)
def test_every_prompt_is_learned_once_after_faults(kind: str, faults: int, tmp_path: Path) -> None:
    seed = int(os.environ.get("DOJANG_KILL_SEED") or SystemRandom().randrange(10**6))
    soak = Soak(
        tmp_path,
        seed,
        shape=Shape(steps=30 if faults > 5 else 15),
        faults_per_run=faults,
        longest_delay_s=2.0,
        local=0,  # workers that join are forked, and so start quickly; those of a trainer import everything anew
        popen=commands.Popen,
    )
    result = soak.soak(kind, faults)
    if result.skipped:
        pytest.skip(result.skipped)
    assert result.violations == [], f"seed {seed}"
    assert result.faults == faults
