"""A streaming run with two worker processes over TCP learns, whatever is killed: a worker, then the trainer.

Both workers sample at the same time before the kills, and the trainer's process samples nothing.
"""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import commands

STEPS, PROMPTS = 18, 16
PATIENCE = 240.0
pytestmark = pytest.mark.slow


def rows(run: Path) -> list[dict[str, Any]]:
    if not (run / "metrics.jsonl").exists():
        return []
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def shared(run: Path) -> list[int]:
    """Steps of the last checkpoint whose batch has groups of two workers, both of which were alive at that time."""
    saved = max((int(each.name.removeprefix("step-")) for each in run.glob("checkpoints/step-*")), default=0)
    wanted = {"rollout_service/workers": 2, "rollout_queue/batch_workers": 2}
    found = [row["step"] for row in rows(run) if all(row.get(name) == count for name, count in wanted.items())]
    return [step for step in found if step <= saved]


def wait_until(condition: Callable[[], bool], *processes: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        assert all(each.poll() is None for each in processes), "a process ended"
        time.sleep(0.05)


def worker_pids(trainer: int) -> list[int]:
    """Processes of the trainer that serve rollouts."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == trainer and b"rollouts" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except (OSError, ValueError):
            continue
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def test_two_workers_over_tcp_learn_through_kills_of_worker_and_trainer(tmp_path: Path) -> None:
    port, run = free_port(), tmp_path / "run"
    environment = {**os.environ, "DOJANG_ROLLOUT_TOKEN": "secret"}
    command = [sys.executable, "-m", "dojang"]
    settings = [
        "loop.mode=stream",
        "loop.workers=1",
        "loop.sample_here=false",
        f"loop.listen=127.0.0.1:{port}",
        "loop.lag=2",
        f"steps={STEPS}",
        f"rollout.prompts_per_step={PROMPTS}",
        f"eval.every={STEPS}",
        "eval.problems=64",
        "rollout.engine.max_num_seqs=64",  # 8 groups at a time: both workers are needed for a batch of 16
        "checkpoint.every=3",
    ]
    options: dict[str, Any] = {"env": environment, "stdout": -1, "stderr": -2, "text": True}
    trainer = commands.Popen([*command, "train", "quickstart", *settings, "--run-dir", str(run)], **options)
    joined = resumed = None
    try:
        wait_until(lambda: len(rows(run)) >= 2, trainer)  # the evaluation before, and the first step
        join = ["serve", "rollouts", "--join", f"http://127.0.0.1:{port}"]
        joined = commands.Popen([*command, *join], **options)
        wait_until(lambda: len(shared(run)) >= 2, trainer, joined)
        (worker,) = worker_pids(trainer.pid)
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: worker_pids(trainer.pid) not in ([], [worker]), trainer, joined)
        (worker,) = worker_pids(trainer.pid)
        trainer.kill()
        trainer.wait()
        wait_until(lambda: not Path(f"/proc/{worker}").exists(), joined)
        resumed = commands.Popen([*command, "resume", str(run)], **options)
        output = resumed.communicate(timeout=PATIENCE)[0]
        assert resumed.returncode == 0, output
        said = joined.communicate(timeout=PATIENCE)[0]
        assert joined.returncode == 0, said
        assert "the run was restarted: joining again" in said
    finally:
        for process in (trainer, joined, resumed):
            if process is not None:
                process.kill()
                process.communicate()
    last = [row for row in rows(run) if "val/accuracy" in row][-1]
    assert (last["step"], last["val/accuracy"] > 0.8) == (STEPS, True)
    steps = [row for row in rows(run) if "critic/rewards/mean" in row]
    assert [row["step"] for row in steps] == list(range(1, STEPS + 1))
    assert max(row["staleness/max"] for row in steps) <= 2
    assert {row["rollout_queue/sampled_here"] for row in steps} == {0}
    assert len(shared(run)) >= 2
    assert steps[-1]["rollout_queue/learned"] + PROMPTS == STEPS * PROMPTS
    assert sum(row.get("rollout_service/sent_bytes", 0) for row in steps) > 0
    assert not worker_pids(resumed.pid)
