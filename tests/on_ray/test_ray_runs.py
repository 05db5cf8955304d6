"""Whole runs on Ray, and what is left of them when something is killed."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from processes import kill, of

from ledgers import ALIKE, Ledger, ledger, steps_done

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("DOJANG_KILLS", "4"))
"""How many processes are killed in one run."""
ON_RAY = ["runtime.name=ray", "runtime.trainers=2", "runtime.engines=2", "runtime.max_failures=100"]
OURS = ("Engine", "Trainer", "Judge")
MakeCluster = Callable[..., Any]


@dataclass
class Training:
    """A run in a process of its own."""

    process: "subprocess.Popen[bytes]"
    log: Path

    def ends_well(self, seconds: float) -> None:
        assert self.process.wait(seconds) == 0, self.log.read_text()


@contextmanager
def train(directory: Path, environment: dict[str, str], *settings: str) -> Iterator[Training]:
    """Into a file: Ray has much to say of what is killed, more than a pipe holds that nobody reads."""
    command = [sys.executable, "-m", "dojang", "train", *ALIKE, *settings, "--run-dir", str(directory)]
    log = directory.with_suffix(".log")
    with log.open("ab") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, cwd=directory.parent)
    try:
        yield Training(process, log)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """What the same run gives in one process."""
    directory = tmp_path_factory.mktemp("local") / "run"
    with train(directory, {**os.environ, "OMP_NUM_THREADS": "1"}) as run:
        run.ends_well(300)
    return ledger(directory)


def test_whatever_is_killed_the_ledger_is_that_of_an_undisturbed_run(
    make_cluster: MakeCluster, environment: dict[str, str], tmp_path: Path, undisturbed: Ledger
) -> None:
    cluster = make_cluster(2, 2, 2)
    chance = random.Random(0)
    directory = tmp_path / "run"
    killed = []
    with train(directory, {**environment, "RAY_ADDRESS": cluster.address}, *ON_RAY) as run:
        while run.process.poll() is None and len(killed) < KILLS:
            time.sleep(chance.uniform(2, 12))
            victims = of(cluster.list_all_nodes(), *OURS)
            if not victims:
                continue
            workers = list(cluster.worker_nodes)
            if len(killed) % 4 == 3 and workers:  # a whole machine, and another one comes
                cluster.remove_node(chance.choice(workers), allow_graceful=False)
                cluster.add_node(num_cpus=2)
                killed.append("node")
            else:
                number = chance.choice(sorted(victims))
                kill(number)
                killed.append(victims[number])
        run.ends_well(900)
    assert len(killed) == KILLS, "the run had ended before"
    assert ledger(directory) == undisturbed
    assert json.loads((directory / "summary.json").read_text())["status"] == "finished"
    assert of(cluster.list_all_nodes(), *OURS) == {}


def test_a_driver_that_is_killed_leaves_nobody_behind_and_can_be_resumed(
    make_cluster: MakeCluster, environment: dict[str, str], tmp_path: Path, undisturbed: Ledger
) -> None:
    cluster = make_cluster(4)
    on = {**environment, "RAY_ADDRESS": cluster.address}
    directory = tmp_path / "run"
    with train(directory, on, *ON_RAY) as run:
        deadline = time.monotonic() + 300
        while steps_done(directory) < 3 and run.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
    assert steps_done(directory) >= 3
    deadline = time.monotonic() + 60
    while of(cluster.list_all_nodes(), *OURS) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert of(cluster.list_all_nodes(), *OURS) == {}
    with train(directory, on, *ON_RAY, "--resume") as again:
        again.ends_well(600)
    assert ledger(directory) == undisturbed
