"""Spans of a run: by a clock that the test sets, and those of real runs in test_train_timeline.py."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from dojang.loop.timeline import Timeline, span
from dojang.loop.watchdog import activity


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        monkeypatch.setattr("time.time", lambda: 1000.0 + self.now)

    def after(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def read(path: Path) -> list[tuple[Any, ...]]:
    """Step, who, stage, and start and end after 1100 s."""
    rows = map(json.loads, path.read_text().splitlines())
    keys = ("step", "who", "stage")
    return [(*(row[key] for key in keys), row["start"] - 1100, row["end"] - 1100) for row in rows]


def test_stages_are_spans_of_trainer_and_engine(tmp_path: Path, clock: Clock) -> None:
    async def play() -> None:
        async with Timeline(tmp_path / "spans", 0, streams=False) as timeline:
            with activity("wait"):
                with activity("load"):
                    clock.after(1)
                with activity("rollout", 3), activity("rollout", 4), activity("problem"):
                    clock.after(2)
            with activity("update"):
                clock.after(4)
            timeline.flush(1)

    asyncio.run(play())
    assert read(tmp_path / "spans") == [
        (1, "engine", "load", 0, 1),
        (1, "trainer", "wait", 0, 3),
        (1, "engine", "rollout", 1, 3),
        (1, "engine", "idle", 3, 7),
        (1, "trainer", "update", 3, 7),
    ]


def test_what_goes_on_at_the_end_of_a_step_continues_in_the_next(tmp_path: Path, clock: Clock) -> None:
    async def play() -> None:
        async with Timeline(tmp_path / "spans", 0, streams=False) as timeline:
            with span("rollout"):
                with span("update"):
                    clock.after(1)
                timeline.flush(1)
                timeline.flush(1)  # nothing has ended since
                with span("update"):
                    clock.after(1)
            clock.after(1)

    asyncio.run(play())
    assert read(tmp_path / "spans") == [
        (1, "engine", "rollout", 0, 1),
        (1, "trainer", "update", 0, 1),
        (1, "engine", "rollout", 1, 2),  # written at the end: the step that was not finished
        (1, "trainer", "update", 1, 2),
        (1, "engine", "idle", 2, 3),
    ]


def test_a_stage_within_another_interrupts_it(tmp_path: Path, clock: Clock) -> None:
    timeline = Timeline(tmp_path / "spans", 0, streams=False)
    timeline.begin("engine", "rollout")
    clock.after(1)
    timeline.begin("engine", "load")
    clock.after(1)
    timeline.end("engine", "rollout")  # ends while it is interrupted
    clock.after(1)
    timeline.end("engine", "load")
    timeline.begin("engine", "rollout")
    clock.after(1)
    timeline.begin("engine", "eval")
    clock.after(1)
    timeline.end("engine", "eval")
    clock.after(1)
    timeline.end("engine", "rollout")
    timeline.flush(2)
    stages = [("rollout", 0, 1), ("load", 1, 3), ("rollout", 3, 4), ("eval", 4, 5), ("rollout", 5, 6)]
    assert read(tmp_path / "spans") == [(2, "engine", *each) for each in stages]


def test_groups_of_a_worker_are_one_span_but_for_long_pauses(tmp_path: Path, clock: Clock) -> None:
    timeline = Timeline(tmp_path / "spans", 0, streams=True)
    for pause in (0.01, 0.01, 1.0):
        timeline.hold(["worker-a", "worker-b"])
        clock.after(0.5)
        timeline.hold(["worker-b"])
        clock.after(pause)
    timeline.hold([])
    timeline.flush(5)
    found = read(tmp_path / "spans")
    assert [each[1:3] for each in found] == [("worker-a", "rollout"), ("worker-b", "rollout")]
    assert found[0][4] == pytest.approx(1.52)
    assert found[1][4] == pytest.approx(2.52)


def test_without_a_run_nothing_is_recorded() -> None:
    with span("update"), activity("rollout", 1):
        pass
