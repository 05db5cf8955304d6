"""Nothing a kept command has started outlives it, nor the process that asked for it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from dojang.cluster.bootstrap.supervised_process import Kept

# A child, and a grandchild in a session of its own whose parent has gone: what Ray's agents are when raylet is killed.
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
        with Kept(command, os.environ) as kept:
            assert soon(lambda kept=kept: kept.poll() is not None)
            assert kept.poll() == code


def test_a_command_that_is_not_there_is_127() -> None:
    with Kept(["/nowhere/at/all"], os.environ, subprocess.PIPE) as kept:
        assert b"/nowhere/at/all: No such file" in kept.lines.read()
        assert soon(lambda: kept.poll() == 127)


def test_signals_are_passed_on_and_orphans_end_with_the_command(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with Kept([sys.executable, "-c", FAMILY, str(pids)], os.environ) as kept:
        assert soon(lambda: pids.exists() and len(pids.read_text().split()) == 3)
        kept.signal(signal.SIGTERM)
        assert soon(lambda: kept.poll() is not None)
        assert kept.poll() == 130
        assert soon(lambda: not living(pids))


def test_stopping_kills_what_does_not_obey() -> None:
    kept = Kept(["sh", "-c", "trap '' TERM; echo ready; sleep 600; sleep 600"], os.environ, subprocess.PIPE, grace=0.2)
    assert kept.lines.readline() == b"ready\n"
    began = time.monotonic()
    assert kept.stop() == 137
    assert time.monotonic() - began < 10


def test_signals_for_everybody_do_not_reach_the_command_twice(tmp_path: Path) -> None:
    """The keeper leaves them to whoever started it."""
    pids = tmp_path / "pids"
    with Kept([sys.executable, "-c", FAMILY, str(pids)], os.environ) as kept:
        assert soon(lambda: len(living(pids)) == 2)
        os.kill(kept._process.pid, signal.SIGTERM)
        time.sleep(0.5)
        assert kept.poll() is None
        assert len(living(pids)) == 2


def test_when_who_started_it_is_killed_everything_ends(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = (
        "import os, sys, time; from dojang.cluster.bootstrap.supervised_process import Kept; "
        "kept = Kept(sys.argv[1:], os.environ, grace=0.5); time.sleep(600)"
    )
    starter = subprocess.Popen([sys.executable, "-c", code, sys.executable, "-c", FAMILY, str(pids)])
    try:
        assert soon(lambda: pids.exists() and len(pids.read_text().split()) == 3)
        assert living(pids)
    finally:
        starter.kill()
        starter.wait()
    assert soon(lambda: not living(pids))
