"""Environments in other processes: crashes and hangs fail their episodes only, and nothing outlives the trainer."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dojang.environments.base import Reply, Step
from dojang.environments.remote_process import ProcessPool, RemoteEnvironment, RemoteFailed
from dojang.types import Message, Problem

ADAPTER = """
import os, random, subprocess, sys, time

class Episode:
    def __init__(self, options, problem):
        self.options, self.seed, self.held_out = options, problem["seed"], problem["held_out"]

    def reset(self):
        print("noise on stdout")
        if self.options.get("broken"):
            raise ValueError("cannot be made")
        return f"{self.options} {self.seed} {self.held_out} {random.random()}"

    def step(self, text):
        if text == "crash":
            print("last words", file=sys.stderr, flush=True)
            os._exit(3)
        if text == "hang":
            while True:
                pass
        if text == "raise":
            raise KeyError("no such move")
        if text == "pid":
            return {"messages": str(os.getpid())}
        if text == "child":
            return {"messages": str(subprocess.Popen(["sleep", "600"]).pid)}
        if text == "end":
            return {"done": True, "reward": 0.5, "solved": True, "parts": {"moves": 2}, "detail": "won"}
        return {"messages": [{"role": "user", "content": str(random.random())}], "reward": 0.25}

    def close(self):
        pass
"""
Start = Callable[..., RemoteEnvironment]


@pytest.fixture
def adapter(tmp_path: Path) -> str:
    (tmp_path / "adapter.py").write_text(ADAPTER)
    return str(tmp_path / "adapter.py")


@pytest.fixture
def pool(adapter: str) -> Iterator[ProcessPool]:
    made = ProcessPool(sys.executable, adapter, 2)
    yield made
    made.close()


@pytest.fixture
def start(pool: ProcessPool) -> Start:
    def begin(seed: int = 1, timeout_s: float = 20.0, **options: object) -> RemoteEnvironment:
        environment = RemoteEnvironment(pool, options, timeout_s)
        problem = Problem(f"p/{seed}", "tests", (Message("user", "?"),), str(seed), columns={"seed": seed})
        environment.first = environment.reset(problem)[0].content  # type: ignore[attr-defined,index,union-attr]
        return environment

    return begin


def said(environment: RemoteEnvironment, text: str) -> str:
    step = environment.step(Reply(text, 0, 9))
    assert isinstance(step, Step)
    assert isinstance(step.messages, list)
    return str(step.messages[0].content)


def gone(pid: int) -> bool:
    for _ in range(100):
        try:
            os.kill(pid, 0)
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (ProcessLookupError, FileNotFoundError):
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False


def test_rewards_and_messages_arrive(start: Start) -> None:
    environment = start(7, size=4)
    assert environment.first.startswith("{'size': 4} 7 False")  # type: ignore[attr-defined]
    step = environment.step(Reply("go", 0, 9))
    assert isinstance(step, Step)
    assert (step.reward, step.done) == (0.25, False)
    last = environment.step(Reply("end", 1, 8))
    assert isinstance(last, Step)
    assert (last.reward, last.done, last.solved, last.parts, last.detail) == (0.5, True, True, {"moves": 2.0}, "won")
    environment.close()


def test_episodes_have_random_numbers_of_their_own(start: Start) -> None:
    alone = start(1)
    expected = [said(alone, "go") for _ in range(3)]
    first, second = start(1), start(2)
    mixed = []
    for _ in range(3):
        mixed.append(said(first, "go"))
        assert said(second, "go") not in expected
    assert mixed == expected


def test_episodes_are_spread_over_the_processes(start: Start) -> None:
    episodes = [start(number) for number in range(4)]
    pids = [said(each, "pid") for each in episodes]
    assert sorted(pids.count(each) for each in set(pids)) == [2, 2]
    for each in episodes:
        each.close()
    assert said(start(9), "pid") in pids


def test_an_exception_fails_its_episode_only(start: Start) -> None:
    one, other = start(1), start(2)
    with pytest.raises(RemoteFailed, match="no such move"):
        one.step(Reply("raise", 0, 9))
    assert said(other, "pid")
    with pytest.raises(RemoteFailed, match="cannot be made"):
        start(3, broken=True)


def test_a_crash_fails_its_episodes_and_the_next_start_a_new_process(start: Start) -> None:
    one, other, third = start(1), start(2), start(3)
    pid = said(one, "pid")
    assert said(third, "pid") == pid
    with pytest.raises(RemoteFailed, match="last words"):
        one.step(Reply("crash", 0, 9))
    with pytest.raises(RemoteFailed):
        third.step(Reply("go", 0, 9))
    assert said(other, "go")
    for each in (one, third):
        each.close()
    assert said(start(4), "pid") != pid


def test_a_process_that_hangs_is_ended(start: Start) -> None:
    environment = start(1, timeout_s=4)
    pid = int(said(environment, "pid"))
    began = time.monotonic()
    with pytest.raises(RemoteFailed, match="no answer in time"):
        environment.step(Reply("hang", 0, 9))
    assert time.monotonic() - began < 10
    assert gone(pid)
    environment.close()


def test_an_interpreter_that_does_not_run_is_named(adapter: str) -> None:
    with pytest.raises(RemoteFailed, match=r"/nonexistent/python could not be started"):
        ProcessPool("/nonexistent/python", adapter, 1).start({"problem": {"seed": 1}, "options": {}}, 5.0)


@pytest.mark.parametrize("busy", [False, True])
def test_nothing_outlives_a_killed_trainer(adapter: str, tmp_path: Path, busy: bool) -> None:
    program = tmp_path / "trainer.py"
    program.write_text(f"""
import sys, threading
from dojang.environments.base import Reply
from dojang.environments.remote_process import ProcessPool, RemoteEnvironment
from dojang.types import Message, Problem
environment = RemoteEnvironment(ProcessPool(sys.executable, {adapter!r}, 1), {{}}, 600.0)
environment.reset(Problem("p", "s", (Message("user", "?"),), "1", columns={{"seed": 1}}))
for what in ("pid", "child"):
    print(environment.step(Reply(what, 0, 9)).messages[0].content, flush=True)
environment.step(Reply("hang", 0, 9)) if {busy} else threading.Event().wait()
""")
    trainer = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    pids = [int(trainer.stdout.readline()) for _ in range(2)]
    time.sleep(0.3)
    trainer.send_signal(signal.SIGKILL)
    trainer.communicate()
    assert all(gone(pid) for pid in pids)


def test_calls_of_many_threads_do_not_mix(start: Start) -> None:
    episodes = [start(number) for number in range(6)]
    expected = {}
    for number, each in enumerate(episodes):
        fresh = start(number)
        expected[number] = [said(fresh, "go") for _ in range(20)]
        fresh.close()
        assert each is not fresh
    found: dict[int, list[str]] = {}

    def play(number: int) -> None:
        found[number] = [said(episodes[number], "go") for _ in range(20)]

    threads = [threading.Thread(target=play, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected
