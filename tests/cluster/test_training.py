"""A run over three hosts, one of which is lost and one of which is out of reach for a while."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from lab import NEEDS_HOSTS, Lab, no_leftovers, until

from ledgers import ALIKE, ledger, steps_done

pytestmark = [*NEEDS_HOSTS, pytest.mark.slow]
MUCH = 400.0
TRAIN = [sys.executable, "-m", "dojang", "train", *ALIKE, "steps=40", "eval.every=40"]
ON_RAY = ["runtime.name=ray", "runtime.trainers=2", "runtime.engines=2", "runtime.max_failures=20"]


def test_a_run_outlives_a_lost_host_and_a_cut_link(make_lab: Callable[[int], Lab], tmp_path: Path) -> None:
    alone, run = tmp_path / "alone", tmp_path / "run"
    subprocess.run([*TRAIN, "--run-dir", str(alone)], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    lab = make_lab(3)
    lab.describe({"everybody": [1, 2, 3]})
    head, second, third = lab.hosts
    lab.start("--timeout", str(MUCH), "--no-dashboard", "--", *TRAIN, *ON_RAY, "--run-dir", str(run))
    until(lambda: steps_done(run) >= 2 or head.poll() is not None, MUCH, head.said)

    second.signal(signal.SIGKILL)
    until(lambda: not second.processes(), 15, lambda: f"{len(second.processes())} processes of algo-2 gone")
    until(lambda: steps_done(run) >= 3 or head.poll() is not None, MUCH, head.said)
    lab.link(3, "down")
    time.sleep(20)  # longer than connections may be silent, shorter than Ray takes to give a node up
    lab.link(3, "up")

    assert head.ends(MUCH) == 0
    assert third.ends(60) == 0
    assert second.ends(5) == -signal.SIGKILL
    assert "algo-2 is lost; going on with" in head.said()
    assert not any(host.failure.exists() for host in lab.hosts)
    assert ledger(run) == ledger(alone)
    no_leftovers(lab)
