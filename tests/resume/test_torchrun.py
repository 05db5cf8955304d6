"""A whole run of several processes: the same as of one, and none of them stays behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import commands

RECIPE = Path(__file__).with_name("torchrun.yaml")
PATIENCE_S = 300.0


def start(directory: Path, *more: str, ranks: int) -> subprocess.Popen[str]:
    several = [commands.TORCHRUN, "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    command = [sys.executable, *several, "-m", "dojang", "train", str(RECIPE), "--run-dir", str(directory), *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return commands.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output
    return output


def figures(directory: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("timing_s", "perf"))} for row in rows]


def await_step(directory: Path, step: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not (directory / "checkpoints" / f"step-{step:06d}").exists():
        assert process.poll() is None, "it ended before it got there"
        assert time.monotonic() < deadline, "it never got there"
        time.sleep(0.05)


def children(process: subprocess.Popen[str]) -> list[int]:
    found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(each) for each in found if os.getsid(int(each)) == int(each)]  # torchrun gives each rank a session


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    directory = tmp_path_factory.mktemp("alone") / "run"
    finish(start(directory, ranks=1))
    return figures(directory)


@pytest.mark.slow
def test_a_run_of_two_processes_resumes_with_one_process(alone: list[dict[str, float]], tmp_path: Path) -> None:
    process = start(tmp_path, "steps=50", ranks=2)
    await_step(tmp_path, 1, process)
    process.send_signal(signal.SIGTERM)  # torchrun hands it on to all
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert "torchrun --nproc-per-node 2 -m dojang resume" in output
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "interrupted"
    done = int((tmp_path / "checkpoints" / "last").resolve().name.removeprefix("step-"))
    if done < 3:
        finish(start(tmp_path, "--resume", "steps=3", ranks=1))
    for mine, theirs in zip(figures(tmp_path)[:4], alone[:4], strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5, abs=1e-9)


@pytest.mark.slow
def test_when_one_process_dies_all_do(tmp_path: Path) -> None:
    process = start(tmp_path, "steps=50", ranks=2)
    await_step(tmp_path, 1, process)
    ranks = children(process)
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode != 0
    assert not [each for each in ranks if Path(f"/proc/{each}").exists()]
