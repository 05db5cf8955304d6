"""`dojang view` as a command: the address it prints, and its end."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from synthetic_run import make_run

FEW = ["steps=1", "eval.problems=2", "rollout.prompts_per_step=1", "rollout.group_size=2"]


def start(command: list[str], temporary: Path) -> "subprocess.Popen[str]":
    environment = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    environment |= {"TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def address(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"http://\S+", line)
    assert found, line + process.communicate(timeout=30)[1]
    return found[0]


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    path = tmp_path / "temporary"
    path.mkdir()
    return path


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(tmp_path: Path, temporary: Path, number: signal.Signals) -> None:
    run = make_run(tmp_path / "run", 3000, per_step=30, tokens=4)
    with start([sys.executable, "-m", "dojang", "view", str(run)], temporary) as process:
        url = address(process)
        assert httpx.get(f"{url}api/runs/run/rollouts", timeout=30).json()["rows"]
        httpx.get(f"{url}api/runs/run/rollouts", params={"q": "loop"}, timeout=30)
        assert list(temporary.iterdir())
        began = time.monotonic()
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    assert time.monotonic() - began < 10
    assert list(temporary.iterdir()) == []


def test_errors_are_one_line(tmp_path: Path, temporary: Path) -> None:
    process = start([sys.executable, "-m", "dojang", "view", str(tmp_path / "none")], temporary)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 5
    assert errors.startswith("dojang: ")
    assert "holds no run" in errors
    assert list(temporary.iterdir()) == []


def test_a_run_prints_the_command_that_shows_it(tmp_path: Path, temporary: Path) -> None:
    train = [sys.executable, "-m", "dojang", "train", "quickstart", *FEW, "--run-dir", str(tmp_path / "a run")]
    done = subprocess.run(train, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = re.search(r"^to look at it: (.+)$", done.stdout, re.MULTILINE)
    assert found
    command = shlex.split(found[1])
    assert command[-2:] == ["view", str(tmp_path / "a run")]
    with start([sys.executable, "-m", "dojang", *command[-2:], "--no-browser"], temporary) as process:
        reply = httpx.get(f"{address(process)}api/runs", timeout=30).json()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert [(each["id"], each["status"]) for each in reply["runs"]] == [("a run", "finished")]
