"""Hundreds of gradings at once, honest and pathological: nothing hangs, no verdict is wrong, nothing is left behind.

bench/maths.py does ten thousand.
"""

import asyncio
import gc
import json
import os
import pickle
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from random import Random

import pytest

from dojang.tasks.maths import MathsConfig, MathsTask
from dojang.tasks.worker_pool import WorkerFailure, WorkerPool
from dojang.types import Outcome, Problem

BENCH = Path(__file__).resolve().parents[3] / "bench"

pytestmark = pytest.mark.skipif(find_spec("math_verify") is None, reason="math-verify is not installed")


def gone(process: int) -> bool:
    """Whether the process ends within some seconds."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and Path(f"/proc/{process}").exists():
        time.sleep(0.02)
    return not Path(f"/proc/{process}").exists()


def test_many_threads_grade_with_one_task(shared_data: Path) -> None:
    from maths import MARK, complaints, in_threads, left_behind
    from maths_corpus import corpus, pathological

    strange = pathological()
    endless = [case for case in strange if case.expected == "anything"]
    cases = [*corpus(shared_data, 400, hostile=0, seed=1), *(case for case in strange if case not in endless[3:])]
    Random(1).shuffle(cases)
    os.environ[MARK] = mark = f"test {os.getpid()}"
    try:
        graded = in_threads(cases, threads=32, timeout_s=2, deadline_s=300)
    finally:
        del os.environ[MARK]
    assert complaints(cases, graded) == []
    assert Counter(case.expected for case, _ in graded) == Counter(case.expected for case in cases)
    gc.collect()
    deadline = time.monotonic() + 10
    while left_behind(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left_behind(mark) == 0


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
def test_ray_actors_grade_with_copies_of_a_task(shared_data: Path) -> None:
    asked = ["--data", str(shared_data), "--gradings", "200", "--hostile", "28", "--timeout", "2", "--ray", "--json"]
    done = subprocess.run(
        [sys.executable, str(BENCH / "maths.py"), *asked], capture_output=True, text=True, timeout=550
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])["rows"]
    assert [row["notes"].split("; ")[1] for row in rows] == ["0 not as they should be"] * 3


def test_copied_task_starts_its_own_processes() -> None:
    task = MathsConfig(workers=1, timeout_s=30).make({"test": []})
    copy: MathsTask = pickle.loads(pickle.dumps(task))
    assert copy.problems("test") == []
    verdict = asyncio.run(copy.grade(Problem("x", "x", (), "7"), r"\boxed{7}"))
    assert verdict.outcome is Outcome.ACCEPTED


def test_an_answer_seen_before_gets_the_same_verdict() -> None:
    task = MathsConfig(workers=1, timeout_s=30).make({})
    asked = [("7", r"\boxed{7}"), ("7", r"\boxed{8}"), ("8", r"\boxed{7}"), ("7", r"7 \boxed{}"), ("", r"\boxed{7}")]

    async def all_of_them() -> list[Outcome]:
        return [(await task.grade(Problem("x", "x", (), gold), text)).outcome for gold, text in asked * 3]

    assert asyncio.run(all_of_them()) == 3 * [
        Outcome.ACCEPTED,
        Outcome.WRONG,
        Outcome.WRONG,
        Outcome.NO_ANSWER,
        Outcome.JUDGE_ERROR,
    ]


def test_a_failure_does_not_keep_the_processes_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    workers = WorkerPool("scripted_worker", count=2, timeout_s=1)
    there = weakref.ref(workers)

    async def both(workers: WorkerPool) -> None:
        processes.append((await workers.ask("who"))[1])
        with pytest.raises(WorkerFailure):
            await asyncio.gather(workers.ask("hang"), workers.ask("who"))

    processes: list[int] = []
    asked = threading.Thread(target=asyncio.run, args=[both(workers)])
    asked.start()
    asked.join()
    del workers, asked
    gc.collect()  # of what pytest and asyncio leave; the threads that hold a failure are none of its business
    assert there() is None
    assert gone(processes[0])


def test_threads_of_a_fork_do_not_race(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    workers = WorkerPool("scripted_worker", count=2, timeout_s=20)
    assert asyncio.run(workers.ask("here"))[0] == "here"
    child = os.fork()
    if not child:
        found: list[object] = []
        threads = [
            threading.Thread(target=lambda: found.append(asyncio.run(workers.ask("there"))[0])) for _ in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        os._exit(0 if found == ["there"] * 16 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert asyncio.run(workers.ask("here"))[0] == "here"
