"""A rollout worker with vLLM: it joins a run over TCP, gets every version of the weights, and ends with the run."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from started_commands import PATIENCE, left, members, start

from vllm_servers import ENVIRONMENT, NEEDS_VLLM, Served

pytestmark = [*NEEDS_VLLM, pytest.mark.slow]

STEPS = 4


def hears_ctrl_c(status: dict[str, str]) -> bool:
    return not int(status["SigBlk"], 16) & 1 << (signal.SIGINT - 1)


@pytest.mark.parametrize(("weight_sync", "lag"), [("full", 1), ("delta", 0)])
def test_every_version_reaches_vllm_in_a_worker_over_tcp(
    kit: Served, tmp_path: Path, weight_sync: str, lag: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    run, trainer_log, worker_log = tmp_path / "run", tmp_path / "trainer.log", tmp_path / "worker.log"
    settings = [
        *(f"model.name={kit.model}", f"steps={STEPS}", f"eval.every={STEPS}", f"checkpoint.every={STEPS}"),
        *("rollout.prompts_per_step=4", "rollout.group_size=4", "rollout.max_tokens=24", "eval.problems=4"),
        *("loop.mode=stream", f"loop.listen=127.0.0.1:{port}", "loop.sample_here=false", f"loop.lag={lag}"),
        *(f"rollout.engine.weight_sync={weight_sync}", "task.rewards={'varied_reward:varied': 1.0}", "train.lr=1e-3"),
    ]
    join = ["serve", "rollouts", "--join", f"http://127.0.0.1:{port}"]
    own = ("name=vllm", "enforce_eager=true", "kv_cache_gb=0.5", "max_num_seqs=16")
    engine = [f"rollout.engine.{each}" for each in own]
    engine_processes: dict[int, dict[str, str]] = {}
    trainer = start(trainer_log, "train", "quickstart", *settings, "--run-dir", str(run))
    worker = start(worker_log, *join, *engine)
    try:
        deadline = time.monotonic() + PATIENCE
        while trainer.poll() is None:
            assert time.monotonic() < deadline, trainer_log.read_text()
            assert not worker.poll(), worker_log.read_text()
            engine_processes |= {pid: each for pid, each in members(worker.pid).items() if "VLLM" in each["Name"]}
            time.sleep(0.5)
        assert trainer.returncode == 0, trainer_log.read_text()
        assert worker.wait(60) == 0, worker_log.read_text()
        assert left(worker.pid) == []
    finally:
        for process in (trainer, worker):
            if members(process.pid):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    said = worker_log.read_text()
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if "critic/rewards/mean" in row]
    assert [row["step"] for row in steps] == list(range(1, STEPS + 1))
    assert max(row["staleness/max"] for row in steps) <= lag
    assert {row["rollout_queue/sampled_here"] for row in steps} == {0}
    # Samples wholly of the current version have the trainer's log-probs: weights have arrived, not only their number.
    # Others are of older weights, which differ.
    current = [row["actor/logprob_diff/max"] for row in steps if "actor/logprob_diff/max" in row]
    older = [row["actor/logp_gap"] for row in steps if row["staleness/mean"] > 0]
    assert max(current) < 1e-3
    assert min(older, default=1.0) > 1e-2
    assert (len(current), len(older)) == (STEPS, 0) if lag == 0 else older
    assert "fetching the full weights" not in said
    assert len(engine_processes) >= 2, "vLLM did not sample"
    assert not any(map(hears_ctrl_c, engine_processes.values())), "Ctrl-C would end vLLM before the worker has drained"


def test_a_killed_process_leaves_no_vllm_behind(kit: Served, tmp_path: Path) -> None:
    code = f"""
import time
from transformers import AutoTokenizer
from dojang.inference.vllm import VllmEngine
if __name__ == "__main__":
    model = {str(kit.model)!r}
    engine = VllmEngine(model, AutoTokenizer.from_pretrained(model), None, kv_cache_gb=0.5, enforce_eager=True)
    open({str(tmp_path / "ready")!r}, "w").close()
    time.sleep(600)
"""
    (tmp_path / "killed.py").write_text(code)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "killed.py")], env={**os.environ, **ENVIRONMENT}, start_new_session=True
    )
    deadline = time.monotonic() + PATIENCE
    try:
        while not (tmp_path / "ready").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert len(members(process.pid)) >= 3
        process.kill()
        process.wait()
        deadline = time.monotonic() + 60
        while remaining := members(process.pid):
            assert time.monotonic() < deadline, remaining
            time.sleep(0.2)
    finally:
        if members(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
