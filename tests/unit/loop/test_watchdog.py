"""Reports of the watchdog, on a clock of the test's own and in a run that hangs."""

import asyncio
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from async_stand_ins import CASES, Engine, Tracker, make_run
from dojang.core.errors import Interrupted
from dojang.loop import watchdog
from dojang.loop.ledger import Ledger
from dojang.loop.rollout_queue import RolloutQueue
from dojang.loop.run_state import State
from dojang.loop.train import train
from dojang.loop.watchdog import Watchdog, activity


class Rollouts:
    settled = 0
    said = ""

    def describe(self) -> str:
        return self.said


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(time, "monotonic", found)
    return found


@pytest.fixture
def rollouts() -> Rollouts:
    return Rollouts()


@pytest.fixture
def dog(rollouts: Rollouts, clock: Clock, tmp_path: Path) -> Iterator[Watchdog]:
    """Watches without a thread: the test calls `check`."""
    found = Watchdog(rollouts, tmp_path / "stall.txt", 600.0)
    watchdog._current.set(found)
    yield found
    watchdog._current.set(None)


def reports(dog: Watchdog, clock: Clock, caplog: pytest.LogCaptureFixture, seconds: int) -> list[tuple[int, str]]:
    """Lets time pass, with a check every second; returns the time and text of every line logged."""
    found = []
    for second in range(1, seconds + 1):
        caplog.clear()
        clock.now += 1
        dog.check()
        found += [(second, each) for each in caplog.messages]
    return found


def test_reports_come_after_a_minute_and_at_twice_the_time_each(
    dog: Watchdog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with activity("update"):
        found = reports(dog, clock, caplog, 500)
    assert [second for second, _ in found] == [60, 120, 240, 480]
    assert found[1][1] == "nothing has progressed for 120 s: the trainer computes the update (120 s)"


def test_it_says_who_waits_for_whom(
    dog: Watchdog, rollouts: Rollouts, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    rollouts.said = "batch 12 lacks 3 of 32 groups: 3 without a worker"
    with activity("wait"), activity("rollout", 387):
        clock.now += 5
        with activity("rollout", 390):
            ((_, said),) = reports(dog, clock, caplog, 55)
    assert said.endswith(
        "the trainer waits for rollouts (60 s); groups being sampled or judged: 2, the oldest (prompt 387) for "
        "60 s; batch 12 lacks 3 of 32 groups: 3 without a worker"
    )


@pytest.mark.parametrize("sign", ["activity", "delivery"])
def test_progress_begins_a_new_count(
    dog: Watchdog, rollouts: Rollouts, clock: Clock, caplog: pytest.LogCaptureFixture, sign: str
) -> None:
    for _ in range(4):
        with activity("wait") if sign == "activity" else activity("rollout", 1):
            assert reports(dog, clock, caplog, 50) == []
        rollouts.settled += sign == "delivery"


def test_a_run_with_long_stages_is_given_more_time(
    dog: Watchdog, clock: Clock, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with activity("update"):
        first = reports(dog, clock, caplog, 400)
    ((_, said),) = reports(dog, clock, caplog, 1)
    assert said == "the run goes on after 401 s"
    with activity("update"):
        second = reports(dog, clock, caplog, 900)
    assert [at for at, _ in first] == [60, 120, 240]
    assert [at for at, _ in second] == [802, 802]  # the report, and where the stacks are
    assert str(tmp_path / "stall.txt") in second[1][1]


def test_workers_that_hold_what_is_missing_are_named(clock: Clock) -> None:
    async def described() -> str:
        queue = RolloutQueue(Ledger(4, 0), has_signal=lambda group: True)
        for worker in ("a", "a", "b"):
            clock.now += 10
            assert await queue.lease(worker, 0.0) is not None
        clock.now += 95
        return queue.describe()

    assert asyncio.run(described()) == (
        "batch 0 lacks 4 of 4 groups: 2 held by a, the oldest (prompt 0) for 115 s, 1 held by b, the oldest (prompt 2) "
        "for 95 s, 1 without a worker"
    )


def test_an_expired_lease_counts_as_without_a_worker(clock: Clock) -> None:
    async def described() -> list[str]:
        queue, said = RolloutQueue(Ledger(3, 0), has_signal=lambda group: True, lease_s=60), list[str]()
        for worker in ("killed", "alive"):
            assert await queue.lease(worker, 0.0) is not None
        for _ in range(2):
            clock.now += 40
            queue.heartbeat("alive")
            said.append(queue.describe())
        return said

    assert asyncio.run(described()) == [
        "batch 0 lacks 3 of 3 groups: 1 held by killed, the oldest (prompt 0) for 40 s, 1 held by alive, the oldest "
        "(prompt 1) for 40 s, 1 without a worker",
        "batch 0 lacks 3 of 3 groups: 1 held by alive, the oldest (prompt 1) for 80 s, 2 without a worker",
    ]


@pytest.mark.parametrize("mode", ["sync", "stream"])
def test_a_run_that_hangs_says_why_and_keeps_stacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    monkeypatch.setattr(watchdog, "FIRST_REPORT_S", 0.05)
    monkeypatch.setattr(watchdog, "POLL_S", 0.01)
    case = replace(CASES[0], rollout_s=0.001, update_s=0.001)
    engine = Engine(case)
    run = replace(make_run(case, mode, 3, tmp_path, engine, Tracker()), stall_s=0.1)
    generate = engine.generate

    async def hangs_at_prompt_6(prompt: object, n: int, sampling: object) -> object:
        if sampling.prompt_index == 6:  # type: ignore[attr-defined]
            await asyncio.Event().wait()
        return await generate(prompt, n, sampling)  # type: ignore[arg-type]

    engine.generate = hangs_at_prompt_6  # type: ignore[method-assign, assignment]

    async def until_stacks_are_there() -> None:
        stop = asyncio.Event()
        training = asyncio.create_task(train(run, State(), stop), name="training")
        deadline = time.monotonic() + 30
        while "the run goes on waiting" not in caplog.text:
            assert time.monotonic() < deadline, caplog.text
            assert not training.done(), caplog.text
            await asyncio.sleep(0.01)
        stop.set()
        with pytest.raises(Interrupted):
            await training

    with caplog.at_level(logging.WARNING):
        asyncio.run(until_stacks_are_there())
    said = next(each for each in reversed(caplog.messages) if each.startswith("nothing has progressed"))
    assert "the trainer waits for rollouts" in said
    assert "groups being sampled or judged: 1, the oldest (prompt 6)" in said
    assert (
        "batch 1 lacks 1 of 4 groups: 1 held by trainer's process" if mode == "stream" else "batch 1 is sampled"
    ) in said
    stacks = run.directory.stall.read_text()
    assert "hangs_at_prompt_6" in stacks  # of a task
    assert "training:" in stacks
    assert "in _watch" in stacks  # of a thread
