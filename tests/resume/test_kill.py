"""kill -9 at any moment, then --resume: the same tokens, rewards and weights as a run that was never killed.

The moments are random; the seed is part of the failure message, and DOJANG_KILL_SEED repeats it.
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

import commands

RECIPE = Path(__file__).parent / "resume.yaml"
STEPS = 8
PATIENCE_S = 300.0
PIPED: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}

pytestmark = pytest.mark.slow


def start(directory: Path, *more: str, popen: type[subprocess.Popen[str]] = commands.Popen) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dojang", "train", str(RECIPE), "--run-dir", str(directory), *more]
    return popen(command, **PIPED)


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output
    return output


def record(directory: Path) -> dict[str, Any]:
    """Everything that must not depend on whether the run was interrupted."""
    columns = ["prompt_index", "index", "problem", "tokens", "logprobs", "reward", "advantage", "version", "outcome"]
    rollouts = {path.name: pq.read_table(path, columns=columns) for path in (directory / "rollouts").glob("*.parquet")}
    weights = load_file(directory / "checkpoints" / "last" / "model.safetensors")
    # Beside these there is an index with a random number in it.
    parts = sorted((directory / "checkpoints" / "last" / "optimizer").glob("*.distcp"))
    optimizer = [path.read_bytes() for path in parts]
    metrics = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return {
        "rollouts": {name: table.to_pylist() for name, table in sorted(rollouts.items())},
        "weights": {name: hashlib.sha256(tensor.tobytes()).hexdigest() for name, tensor in weights.items()},
        "optimizer": [hashlib.sha256(each).hexdigest() for each in optimizer],
        "metrics": [{k: v for k, v in row.items() if not k.startswith(("timing_s", "perf"))} for row in metrics],
        "best": (directory / "checkpoints" / "best").resolve().name,
        "last": (directory / "checkpoints" / "last").resolve().name,
        "kept": sorted(path.name for path in directory.glob("checkpoints/step-*")),
    }


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("untouched") / "run"
    finish(start(directory, popen=subprocess.Popen))  # with another hash seed than those compared with it
    return record(directory)


def steps_done(directory: Path) -> int:
    """Training steps in metrics.jsonl; a torn or missing file counts as none."""
    try:
        lines = (directory / "metrics.jsonl").read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return 0
    return sum(b"critic/rewards/mean" in line for line in lines)


def kill_when(process: subprocess.Popen[str], ready: Callable[[], bool]) -> bool:
    """Send SIGKILL at the moment `ready` says so; False if the run was over before."""
    deadline = time.monotonic() + PATIENCE_S
    while process.poll() is None:
        if ready():
            process.send_signal(signal.SIGKILL)
            process.communicate()
            return True
        assert time.monotonic() < deadline, "the run made no progress"
        time.sleep(0.0005)
    process.communicate()
    return False


def during_a_save(directory: Path, after: int, delay: float) -> Callable[[], bool]:
    """Ready a moment after a checkpoint later than `after` begins to be written."""
    seen: list[float] = []

    def ready() -> bool:
        if not seen and steps_done(directory) > after and any(directory.glob("checkpoints/.step-*.tmp")):
            seen.append(time.monotonic())
        return bool(seen) and time.monotonic() >= seen[0] + delay

    return ready


def after_step(directory: Path, step: int, delay: float) -> Callable[[], bool]:
    """Ready a moment after the step is recorded (0: after the directory is claimed)."""
    seen: list[float] = []

    def ready() -> bool:
        if not seen and (directory / "run.lock").exists() and steps_done(directory) >= step:
            seen.append(time.monotonic())
        return bool(seen) and time.monotonic() >= seen[0] + delay

    return ready


def test_killed_at_random_points_it_continues_token_exact(tmp_path: Path, untouched: dict[str, Any]) -> None:
    seed = int(os.environ.get("DOJANG_KILL_SEED") or random.SystemRandom().randrange(10**6))
    chance = random.Random(seed)
    directory = tmp_path / "run"
    moments = sorted(chance.sample(range(STEPS - 1), 3))
    kills = 0
    for turn, step in enumerate(moments):
        ready = (
            during_a_save(directory, step, chance.uniform(0, 0.05))
            if turn % 2 == seed % 2
            else after_step(directory, step, chance.uniform(0, 0.6))
        )
        kills += kill_when(start(directory, *(["--resume"] if kills else [])), ready)
    finish(start(directory, "--resume"))
    assert kills >= 2, f"seed {seed}: the run was too quick to be killed"
    played = record(directory)
    for part, expected in untouched.items():
        assert played[part] == expected, f"seed {seed}: {part} differ after kills around steps {moments}"
    leftovers = [path.name for path in directory.rglob("*.tmp")]
    assert not [name for name in leftovers if name.startswith(".step")], leftovers


def test_killed_while_the_first_checkpoint_is_written_it_starts_again(
    tmp_path: Path, untouched: dict[str, Any]
) -> None:
    directory = tmp_path / "run"
    assert kill_when(start(directory), lambda: any(directory.glob("checkpoints/.step-*.tmp")))
    finish(start(directory, "--resume"))
    played = record(directory)
    assert played["weights"] == untouched["weights"]
    assert played["rollouts"] == untouched["rollouts"]


def test_ctrl_c_saves_and_says_how_to_resume(tmp_path: Path, untouched: dict[str, Any]) -> None:
    directory = tmp_path / "run"
    process = start(directory)
    deadline = time.monotonic() + PATIENCE_S
    while steps_done(directory) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, output
    assert output.count(f"dojang resume {directory}") >= 2  # at the start, and at the end
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert summary["resume"] in output
    finish(commands.Popen([sys.executable, "-m", *summary["resume"].split()[-3:]], **PIPED))
    assert record(directory)["weights"] == untouched["weights"]


def test_a_second_process_in_the_same_run_directory_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    first = start(directory)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not (directory / "run.json").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        second = start(directory, "--resume")
        output, _ = second.communicate(timeout=PATIENCE_S)
        assert second.returncode == 5
        assert f"in use by process {first.pid}" in output
    finally:
        first.kill()
        first.communicate()


def test_a_used_directory_needs_resume_and_the_same_settings(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    first = start(directory)
    assert kill_when(first, after_step(directory, 1, 0))
    again = start(directory)
    output, _ = again.communicate(timeout=PATIENCE_S)
    assert again.returncode == 5
    assert f"dojang resume {directory}" in output
    changed = start(directory, "--resume", "seed=9")
    output, _ = changed.communicate(timeout=PATIENCE_S)
    assert changed.returncode == 2
    assert "seed: was 3, now 9" in output
