"""Rollouts in another process: many at a time; crashes and hangs fail their rollouts only, and nothing is left."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dojang.environments import rollout_process
from dojang.environments.rollout_process import RolloutFailed, RolloutProcess, RolloutProcesses

ADAPTER = """
import asyncio, os, subprocess, sys

PACKAGE = "no_such_package"

class Rollouts:
    def __init__(self, options):
        if options.get("package"):
            import no_such_package
        self.options, self.met = options, asyncio.Event()

    async def start(self):
        print("noise on stdout")
        if self.options.get("broken"):
            raise ValueError("cannot be made")

    async def run(self, text):
        if text == "crash":
            print("last words", file=sys.stderr, flush=True)
            os._exit(3)
        if text == "hang":
            while True:
                pass
        if text == "sleep":
            await asyncio.sleep(600)
        if text == "raise":
            raise KeyError("no such move")
        if text == "meet":
            await self.met.wait()
        if text == "come":
            self.met.set()
        if text == "child":  # in a session of its own, and an orphan soon
            command = "sleep 600 > /dev/null & echo $!"
            found = subprocess.run(["setsid", "sh", "-c", command], stdout=subprocess.PIPE, text=True)
            return {"reward": int(found.stdout)}
        return {"reward": 1.0, "detail": text, "pid": os.getpid()}
"""


@pytest.fixture
def adapter(tmp_path: Path) -> str:
    (tmp_path / "adapter.py").write_text(ADAPTER)
    return str(tmp_path / "adapter.py")


@pytest.fixture
def processes(adapter: str) -> Iterator[RolloutProcesses]:
    made = RolloutProcesses(sys.executable, adapter, {})
    yield made
    made.close()


def run(processes: RolloutProcesses, text: str, timeout_s: float = 60.0) -> dict[str, Any]:
    return asyncio.run(processes.get().call("run", timeout_s, text=text))


def test_rollouts_overlap(processes: RolloutProcesses) -> None:
    async def both() -> list[dict[str, Any]]:
        process = processes.get()
        return await asyncio.gather(process.call("run", 60.0, text="meet"), process.call("run", 60.0, text="come"))

    assert [each["detail"] for each in asyncio.run(both())] == ["meet", "come"]


def test_a_rollout_that_raises_or_takes_too_long_fails_alone(processes: RolloutProcesses) -> None:
    before = run(processes, "a")["pid"]
    with pytest.raises(RolloutFailed, match="KeyError: 'no such move'"):
        run(processes, "raise")
    with pytest.raises(RolloutFailed) as late:
        run(processes, "sleep", timeout_s=0.2)
    assert late.value.kind == "timeout"
    assert run(processes, "b")["pid"] == before


def test_a_cancelled_rollout_leaves_the_process(processes: RolloutProcesses) -> None:
    async def given_up() -> None:
        await asyncio.wait_for(processes.get().call("run", 600.0, text="sleep"), 1.0)

    before = run(processes, "a")["pid"]
    with pytest.raises(TimeoutError):
        asyncio.run(given_up())
    assert run(processes, "b")["pid"] == before


def test_a_crash_fails_its_rollouts_and_starts_anew(processes: RolloutProcesses) -> None:
    before = run(processes, "a")["pid"]
    with pytest.raises(RolloutFailed, match="process ended: last words"):
        run(processes, "crash")
    assert run(processes, "b")["pid"] != before


def test_a_hang_ends_the_process(processes: RolloutProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_process, "_GRACE_S", 0.5)
    before = run(processes, "a")["pid"]
    with pytest.raises(RolloutFailed, match="answered nothing"):
        run(processes, "hang", timeout_s=0.5)
    assert gone(before)
    monkeypatch.undo()
    assert run(processes, "b")["pid"] != before


def test_orphans_end_with_the_process(processes: RolloutProcesses) -> None:
    child = int(run(processes, "child")["reward"])
    assert not gone(child, within_s=0.0)
    processes.close()
    assert gone(child)


def test_orphans_end_with_a_killed_trainer(adapter: str, tmp_path: Path) -> None:
    program = (
        "import asyncio, sys, time\n"
        "from dojang.environments.rollout_process import RolloutProcesses\n"
        f"process = RolloutProcesses(sys.executable, {adapter!r}, {{}}).get()\n"
        "print(int(asyncio.run(process.call('run', 60.0, text='child'))['reward']), flush=True)\n"
        "print(asyncio.run(process.call('run', 60.0, text='a'))['pid'], flush=True)\n"
        "time.sleep(600)\n"
    )
    trainer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    pids = [int(trainer.stdout.readline()) for _ in range(2)]
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    trainer.stdout.close()
    assert all(gone(each) for each in pids)


def test_what_cannot_start_says_why(adapter: str, tmp_path: Path) -> None:
    for options, said, kind in (({"broken": 1}, "cannot be made", "rollout"), ({"package": 1}, "package", "package")):
        process = RolloutProcess(sys.executable, adapter, options)
        with pytest.raises(RolloutFailed, match=said) as failed:
            process.started.result(60.0)
        assert failed.value.kind == kind
        process.close()
    with pytest.raises(RolloutFailed, match="could not be started"):
        RolloutProcess(str(tmp_path / "nothing"), adapter, {})
    process = RolloutProcess(sys.executable, adapter, {})
    with pytest.raises(RolloutFailed, match="cannot be sent"):
        asyncio.run(process.call("run", 60.0, text=object()))
    process.close()
    with pytest.raises(RolloutFailed, match="was ended"):
        asyncio.run(process.call("run", 60.0, text="a"))


def gone(pid: int, within_s: float = 60.0) -> bool:
    """Whether a process ends in time; a zombie has ended."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
