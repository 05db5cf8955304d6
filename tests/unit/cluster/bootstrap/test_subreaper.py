"""Descendants of a supervised process end with it and with the process that started it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from dojang.cluster.bootstrap.supervised_process import SupervisedProcess

# A child, and an orphaned grandchild in another session, as Ray's agents are when raylet is killed.
FAMILY = """
import os, signal, sys, time
def record():
    with open(sys.argv[1], "a") as file:
        file.write(f"{os.getpid()}\\n")
record()
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    record()
    time.sleep(600)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
record()
while True:
    time.sleep(0.05)
"""


def soon(done: Callable[[], object], seconds: float = 15.0) -> bool:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def living(path: Path) -> list[int]:
    numbers = [int(line) for line in path.read_text().split()] if path.exists() else []
    return [pid for pid in set(numbers) if Path(f"/proc/{pid}").exists()]


def test_the_exit_code_is_the_commands() -> None:
    for command, code in ((["sh", "-c", "exit 3"], 3), (["sh", "-c", "kill -KILL $$"], 137), (["true"], 0)):
        with SupervisedProcess(command, os.environ) as process:
            assert soon(lambda process=process: process.poll() is not None)
            assert process.poll() == code


def test_missing_command_returns_127() -> None:
    with SupervisedProcess(["/nowhere/at/all"], os.environ, subprocess.PIPE) as process:
        assert b"/nowhere/at/all: No such file" in process.lines.read()
        assert soon(lambda: process.poll() == 127)


def test_signals_are_forwarded_and_orphans_end_with_the_command(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with SupervisedProcess([sys.executable, "-c", FAMILY, str(pids)], os.environ) as process:
        assert soon(lambda: pids.exists() and len(pids.read_text().split()) == 3)
        process.signal(signal.SIGTERM)
        assert soon(lambda: process.poll() is not None)
        assert process.poll() == 130
        assert soon(lambda: not living(pids))


def test_stop_kills_a_command_that_ignores_sigterm() -> None:
    process = SupervisedProcess(
        ["sh", "-c", "trap '' TERM; echo ready; sleep 600; sleep 600"], os.environ, subprocess.PIPE, grace=0.2
    )
    assert process.lines.readline() == b"ready\n"
    began = time.monotonic()
    assert process.stop() == 137
    assert time.monotonic() - began < 10


def test_group_signals_do_not_reach_the_command_twice(tmp_path: Path) -> None:
    """The subreaper ignores them: its caller forwards signals."""
    pids = tmp_path / "pids"
    with SupervisedProcess([sys.executable, "-c", FAMILY, str(pids)], os.environ) as process:
        assert soon(lambda: len(living(pids)) == 2)
        os.kill(process._process.pid, signal.SIGTERM)
        time.sleep(0.5)
        assert process.poll() is None
        assert len(living(pids)) == 2


def test_everything_ends_when_the_caller_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = (
        "import os, sys, time; from dojang.cluster.bootstrap.supervised_process import SupervisedProcess; "
        "process = SupervisedProcess(sys.argv[1:], os.environ, grace=0.5); time.sleep(600)"
    )
    starter = subprocess.Popen([sys.executable, "-c", code, sys.executable, "-c", FAMILY, str(pids)])
    try:
        assert soon(lambda: pids.exists() and len(pids.read_text().split()) == 3)
        assert living(pids)
    finally:
        starter.kill()
        starter.wait()
    assert soon(lambda: not living(pids))
