"""Runs over several hosts: with lost hosts and cut links, with sequence parallelism, in the containers of a job."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from transformers import AutoModelForCausalLM

from dojang.cluster.sagemaker.payload import Payload
from dojang.core.run_dir import RunDir
from network_hosts import NEEDS_HOSTS, Host, Lab, no_leftovers, until
from run_records import ALIKE, ledger, steps_done

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
    assert "algo-2 is lost; continuing with" in head.said()
    assert not any(host.failure.exists() for host in lab.hosts)
    assert ledger(run) == ledger(alone)
    no_leftovers(lab)


def processes_on(host: Host, title: str) -> int:
    """Number of the host's processes whose command begins so."""

    def command(process: int) -> str:
        try:
            return Path(f"/proc/{process}/cmdline").read_text()
        except OSError:
            return ""  # it has ended

    return sum(command(each).startswith(title) for each in host.processes())


def test_sequence_parallel_ranks_on_different_hosts(make_lab: Callable[[int], Lab], tmp_path: Path) -> None:
    """Every trainer and engine takes a whole host, so the two ranks of a row exchange heads over the network."""
    alone, run = tmp_path / "alone", tmp_path / "run"
    train = [sys.executable, "-m", "dojang", "train", *ALIKE]
    subprocess.run([*train, "--run-dir", str(alone)], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    lab = make_lab(3)
    lab.describe({"everybody": [1, 2, 3]})
    apart = ["runtime.name=ray", "runtime.trainers=2", "train.sequence_parallel=2", f"runtime.cpus={os.cpu_count()}"]
    lab.start("--timeout", str(MUCH), "--no-dashboard", "--", *train, *apart, "--run-dir", str(run))
    head, *_ = lab.hosts
    until(lambda: steps_done(run) >= 2 or head.poll() is not None, MUCH, head.said)
    assert sum(processes_on(host, "ray::Trainer") > 0 for host in lab.hosts) == 2
    assert [host.ends(MUCH) for host in lab.hosts] == [0, 0, 0]
    assert ledger(run) == ledger(alone)
    no_leftovers(lab)


def test_sequence_parallelism_in_the_containers_of_a_job(make_lab: Callable[[int], Lab]) -> None:
    """The command of a SageMaker job, on the hosts it describes: the head's container hands over the model."""
    lab = make_lab(2)
    lab.describe({"everybody": [1, 2]})
    channel = lab.hosts[0].root / "input/data/dojang"
    for folder in (channel, lab.hosts[0].root / "model"):
        folder.mkdir(parents=True)
    spread = ("runtime.trainers=2", "train.sequence_parallel=2", "runtime.cpus=1")
    Payload(ALIKE[0], (*ALIKE[1:], "steps=2", "eval.every=2", *spread)).write(channel)
    inside = [sys.executable, "-m", "dojang", "launch", "entry-point", "runtime.name=ray"]
    lab.start("--timeout", str(MUCH), "--no-dashboard", "--", *inside)
    assert [host.ends(MUCH) for host in lab.hosts] == [0, 0]
    head, worker = lab.hosts
    assert not any(host.failure.exists() for host in lab.hosts)
    told = json.loads((head.root / "output/data/summary.json").read_text())
    assert (told["status"], told["steps"]) == ("finished", 2)
    AutoModelForCausalLM.from_pretrained(head.root / "model")
    assert not (worker.root / "model").exists()
    no_leftovers(lab)


def test_rollout_workers_on_another_host_outlive_a_cut_link(make_lab: Callable[[int], Lab], tmp_path: Path) -> None:
    """The head runs the driver alone, so that the worker reaches it over the network."""
    run, steps, prompts = tmp_path / "run", 8, 8
    stream = ["quickstart", "runtime=ray", "loop.mode=stream", "loop.workers=1", "loop.sample_here=false"]
    stream += [f"steps={steps}", f"rollout.prompts_per_step={prompts}", f"eval.every={steps}", "eval.problems=16"]
    lab = make_lab(3)
    lab.describe({"everybody": [1, 2, 3]})
    train = [sys.executable, "-m", "dojang", "train", *stream, "--run-dir", str(run)]
    lab.start("--timeout", str(MUCH), "--no-dashboard", "--coordinator", "--", *train)
    head, *others = lab.hosts
    until(lambda: steps_done(run) >= 2 or head.poll() is not None, MUCH, head.said)
    (worker,) = (at for at, host in enumerate(lab.hosts, 1) if processes_on(host, "ray::RolloutWorker"))
    assert worker > 1
    lab.link(worker, "down")
    time.sleep(20)  # longer than connections may be silent, shorter than Ray takes to give a node up
    lab.link(worker, "up")
    assert head.ends(MUCH) == 0, head.said()
    assert [host.ends(60) for host in others] == [0, 0]
    tables = [pq.read_table(RunDir(run).rollouts("train", at + 1)) for at in range(steps)]
    learned = [index for table in tables for index in dict.fromkeys(table["prompt_index"].to_pylist())]
    assert learned == list(range(steps * prompts))
    no_leftovers(lab)
