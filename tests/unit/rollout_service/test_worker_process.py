"""Worker processes of this machine: restarts, logs, ends; none is left when the trainer is killed."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dojang.core.interrupt import CHILD_GROUPS
from dojang.rollout_service.worker_process import WorkerProcess
from service_parts import PATIENCE, play

# The parent starts a worker, which starts a process too; both write their process ids.
PARENT = """
import asyncio, sys
from pathlib import Path
from dojang.rollout_service.worker_process import WorkerProcess
child = '''
import os, subprocess, sys
from dojang.core.child_process import PARENT_VARIABLE, end_with_parent
end_with_parent(int(os.environ[PARENT_VARIABLE]))
other = subprocess.Popen(["sleep", "600"])
print(os.getpid(), other.pid, flush=True)
other.wait()
'''
async def main():
    WorkerProcess([sys.executable, "-c", child], {}, Path(sys.argv[1]), lambda pid, reason: True).start()
    await asyncio.sleep(600)
asyncio.run(main())
"""


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def wait_for(condition: object) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_killed_parent_leaves_no_process(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    with subprocess.Popen([sys.executable, "-c", PARENT, str(log)]) as parent:
        try:
            wait_for(lambda: log.exists() and len(log.read_text().split()) == 2)
            pids = [int(each) for each in log.read_text().split()]
            assert all(map(alive, pids))
        finally:
            parent.kill()
    wait_for(lambda: not any(map(alive, pids)))


def test_a_process_that_ends_is_started_again_and_its_log_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dojang.rollout_service.worker_process._DELAY_S", 0.0)
    reasons: list[str] = []

    def on_end(pid: int, reason: str) -> bool:
        reasons.append(reason)
        return len(reasons) < 3

    async def test() -> None:
        worker = WorkerProcess(
            ["sh", "-c", "echo $GREETING; exit 3"], {"GREETING": "hi"}, tmp_path / "a" / "log", on_end
        )
        worker.start()
        while len(reasons) < 3:
            await asyncio.sleep(0.01)
        await worker.close(PATIENCE)

    play(test())
    assert "exit code 3" in reasons[0]
    assert reasons[-1].endswith("log:\nhi\nhi\nhi")


def test_a_killed_process_is_started_again(tmp_path: Path) -> None:
    reasons: list[str] = []

    def on_end(pid: int, reason: str) -> bool:
        reasons.append(reason)
        return True

    async def test() -> None:
        worker = WorkerProcess(["sleep", "600"], {}, tmp_path / "log", on_end)
        worker.start()
        first = worker.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        while worker.pid in (None, first):
            await asyncio.sleep(0.01)
        second = worker.pid
        assert second is not None
        await worker.close(PATIENCE)
        assert not alive(second)
        assert not CHILD_GROUPS & {first, second}

    play(test())
    assert reasons == ["it ended with signal SIGKILL"]


def test_a_process_that_does_not_end_is_killed_with_its_children(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def test() -> None:
        script = "trap '' TERM; sleep 600 & echo $!; while true; do wait; done"
        worker = WorkerProcess(["sh", "-c", script], {}, log, lambda pid, reason: True)
        worker.start()
        pid = worker.pid
        assert pid is not None
        while not log.read_text().strip():
            await asyncio.sleep(0.01)
        await worker.close(0.2)
        assert worker.pid is None
        child = int(log.read_text())
        wait_for(lambda: not (alive(pid) or alive(child)))

    play(test())
