"""Whole runs on Ray, and what is left of them when something is killed."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import kill, of
from safetensors.torch import load_file
from training import learned_prompts, rows, train

from run_records import Ledger, ledger, steps_done

pytest.importorskip("ray", reason="Ray is not installed here; make test-ray has it")
pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("DOJANG_KILLS", "4"))
"""How many processes are killed in one run."""
ON_RAY = ["runtime.name=ray", "runtime.trainers=2", "runtime.engines=2", "runtime.max_failures=100"]
OURS = ("Engine", "Trainer", "Judge")
MakeCluster = Callable[..., Any]


@pytest.fixture(scope="module")
def local_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run in one process."""
    directory = tmp_path_factory.mktemp("local") / "run"
    with train(directory, {**os.environ, "OMP_NUM_THREADS": "1"}) as run:
        run.ends_well(300)
    return directory


@pytest.fixture(scope="module")
def undisturbed(local_run: Path) -> Ledger:
    """Its samples."""
    return ledger(local_run)


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


def test_a_killed_driver_leaves_no_processes_and_the_run_resumes(
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


@pytest.mark.parametrize("mode", ["overlap", "stream"])
def test_asynchronous_runs_train_every_prompt_once_after_kills(
    make_cluster: MakeCluster, environment: dict[str, str], tmp_path: Path, mode: str
) -> None:
    cluster = make_cluster(2, 2)
    directory = tmp_path / "run"
    modes = [f"loop.mode={mode}", "loop.lag=2"]
    with train(directory, {**environment, "RAY_ADDRESS": cluster.address}, *ON_RAY, *modes) as run:
        for kind in ("Engine", "Trainer"):
            done = steps_done(directory)
            deadline = time.monotonic() + 300
            while steps_done(directory) <= done and run.process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.2)
            kill(min(number for number, name in of(cluster.list_all_nodes(), kind).items()))
        run.ends_well(600)
    steps = [row for row in rows(directory) if "staleness/max" in row]
    assert max(row["staleness/max"] for row in steps) <= 2
    learned = learned_prompts(directory, len(steps))
    assert [index for each in learned for index in each] == list(range(sum(map(len, learned))))
    assert len({len(each) for each in learned}) == 1
    assert of(cluster.list_all_nodes(), *OURS) == {}


@pytest.mark.parametrize("trainers", [2, 4])
def test_sequence_parallel_ranks_learn_what_one_process_learns(
    make_cluster: MakeCluster, environment: dict[str, str], tmp_path: Path, local_run: Path, trainers: int
) -> None:
    """Ulysses over two ranks; with four trainers the samples are divided as well. One of two ranks is killed."""
    cluster = make_cluster(3, 3)
    directory = tmp_path / "run"
    settings = [
        "runtime.name=ray",
        f"runtime.trainers={trainers}",
        "runtime.max_failures=1",
        "train.sequence_parallel=2",
    ]
    with train(directory, {**environment, "RAY_ADDRESS": cluster.address}, *settings) as run:
        if trainers == 2:
            deadline = time.monotonic() + 300
            while steps_done(directory) < 3 and run.process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
            kill(max(of(cluster.list_all_nodes(), "Trainer")))
        run.ends_well(600)
    assert ("restarting from the last checkpoint" in run.log.read_text()) == (trainers == 2)
    assert ledger(directory) == ledger(local_run)
    mine, theirs = (load_file(each / "checkpoints/last/model.safetensors") for each in (directory, local_run))
    assert mine.keys() == theirs.keys()
    # A mistake (a token counted twice, a gradient not summed) moves weights by a share of lr in each of 6 steps of at
    # most lr = 3e-4. Rounding moves them by 2^-24 of that: norms are computed in single precision whatever the rest is.
    for name, tensor in mine.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=6 * 3e-4 * 1e-3)


TWO = ["quickstart-code", "workflow.name=coder_tester", "tester.model=dojang-tiny-code", "tester.lr=1e-4"]
TWO += ["steps=3", "rollout.prompts_per_step=4", "rollout.group_size=4", "tester.max_tokens=24", "model.dtype=float64"]
TWO += ["eval.every=3", "eval.problems=4", "checkpoint.every=1"]


def test_two_roles_at_once_learn_what_they_learn_one_after_the_other(
    make_cluster: MakeCluster, environment: dict[str, str], tmp_path: Path
) -> None:
    """On Ray both roles update at the same time, and have numbers of processes of their own."""
    turns, at_once = tmp_path / "turns", tmp_path / "at-once"
    with train(turns, environment, recipe=TWO) as run:
        run.ends_well(300)
    cluster = make_cluster(3, 3)
    settings = ["runtime.name=ray", "runtime.engines=2", "tester.engines=1", "tester.trainers=2"]
    with train(at_once, {**environment, "RAY_ADDRESS": cluster.address}, *settings, recipe=TWO) as run:
        deadline = time.monotonic() + 300
        while steps_done(at_once) < 1 and run.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        ours = [title.removeprefix("ray::") for title in of(cluster.list_all_nodes(), "Trainer", "Engine").values()]
        assert sorted(each.partition(".")[0].partition(":")[0] for each in ours) == ["Engine"] * 3 + ["Trainer"] * 3
        run.ends_well(600)
    assert ledger(at_once) == ledger(turns)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            ["runtime.trainers=3", "train.sequence_parallel=4"],
            "runtime.trainers=3 must be a multiple of train.sequence_parallel=4",
        ),
        (
            ["runtime.trainers=6", "train.sequence_parallel=4"],
            "runtime.trainers=6 must be a multiple of train.sequence_parallel=4",
        ),
        (
            ["runtime.trainers=3", "train.sequence_parallel=3"],
            "train.sequence_parallel=3 cannot divide the model's 4 attention",
        ),
        (
            ["rollout.engine=vllm", "rollout.engine.tensor_parallel_size=3"],
            "does not divide the model's 4 attention heads",
        ),
    ],
)
def test_a_dry_run_refuses_numbers_of_processes_that_do_not_divide(
    environment: dict[str, str], tmp_path: Path, settings: list[str], said: str
) -> None:
    command = [sys.executable, "-m", "dojang", "train", "quickstart", "runtime=ray", *settings, "--dry-run"]
    result = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 2
    assert said in result.stderr.replace("\n", " ")
