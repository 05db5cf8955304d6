"""Runs that are killed with SIGKILL and resumed sample the tokens of a run that was never killed."""

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

__all__ = ["samples_of_a_killed_run"]

COLUMNS = ["prompt_index", "index", "problem", "tokens", "mask", "logprobs", "reward", "advantage", "turns"]


def samples_of_a_killed_run(
    start: Callable[..., "subprocess.Popen[str]"], folder: Path, steps: int, patience_s: float
) -> list[dict[str, Any]]:
    """Kills a run when it has rollouts of `steps` steps, resumes it, and compares it with another; returns the samples
    that were trained on. `start(directory, *more)` starts one, with further arguments."""
    untouched, killed = folder / "untouched", folder / "killed"
    _finish(start(untouched), patience_s)
    process = start(killed)
    deadline = time.monotonic() + patience_s
    while len(list((killed / "rollouts").glob("train-*"))) < steps:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "the run made no progress"
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    _finish(start(killed, "--resume"), patience_s)
    expected, played = _rollouts(untouched), _rollouts(killed)
    assert played.keys() == expected.keys()
    for name, rows in expected.items():
        assert played[name] == rows, f"{name} differs"
    return [row for name, rows in expected.items() if name.startswith("train") for row in rows]


def _finish(process: "subprocess.Popen[str]", patience_s: float) -> None:
    output, _ = process.communicate(timeout=patience_s)
    assert process.returncode == 0, output


def _rollouts(directory: Path) -> dict[str, list[dict[str, Any]]]:
    files = sorted((directory / "rollouts").glob("*.parquet"))
    return {path.name: pq.read_table(path, columns=COLUMNS).to_pylist() for path in files}
