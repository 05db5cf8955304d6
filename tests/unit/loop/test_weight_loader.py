"""Times of loading weights, in all modes of the loop."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from async_stand_ins import CASES, MODES, Engine, Tracker, make_run
from dojang.loop.run_state import State
from dojang.loop.train import train
from dojang.loop.weight_loader import WeightLoader
from dojang.types import Metrics
from virtual_clock import run_virtually

CASE = CASES[1]  # rollouts take longer than updates: the engine is never idle in overlap
LOAD_S, PAUSE_S = 0.05, 0.02


@dataclass
class SlowLoad(Engine):
    async def load(self, version: int) -> Metrics:  # type: ignore[override]
        await asyncio.sleep(LOAD_S)
        await super().load(version)
        return {"timing_s/load_pause": PAUSE_S}


@pytest.mark.parametrize("mode", MODES)
def test_every_step_records_the_time_of_its_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: str) -> None:
    tracker = Tracker()
    run = make_run(CASE, mode, 6, tmp_path, SlowLoad(CASE), tracker)
    run_virtually(monkeypatch, train(replace(run, eval_every=3), State(), asyncio.Event()))
    without = {"sync": 1, "overlap": 2, "stream": 1}[mode]  # batches of the initial weights, which the engine has
    for name, seconds in {"timing_s/load": LOAD_S, "timing_s/load_pause": PAUSE_S}.items():
        found = [row.get(name) for row in tracker.rows]
        assert found[:without] == [None] * without
        assert found[without:] == pytest.approx([seconds] * (6 - without))


def test_a_step_of_stream_includes_the_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tracker = Tracker()
    case = replace(CASE, rollout_s=0.01)
    run = make_run(case, "stream", 4, tmp_path, SlowLoad(case), tracker)
    run_virtually(monkeypatch, train(run, State(), asyncio.Event()))
    steps = [row["timing_s/step"] for row in tracker.rows[1:]]
    assert steps == pytest.approx([case.update_s + LOAD_S] * 3)


def test_a_version_is_loaded_once_and_all_loads_of_a_step_count() -> None:
    loaded: list[int] = []

    async def load(version: int) -> Metrics:
        loaded.append(version)
        return {"weights/bytes": 7.0}

    async def play() -> Sequence[Metrics]:
        loader = WeightLoader(load, 3)
        await loader.load(3)
        none = loader.take_figures()
        for version in (5, 5, 4):  # an evaluation with the newest version, then a batch with an older one
            await loader.load(version)
        return none, loader.take_figures(), loader.take_figures()

    none, both, after = asyncio.run(play())
    assert loaded == [5, 4]
    assert both["weights/bytes"] == 14.0
    assert "timing_s/load" in both
    assert none == after == {}


def test_a_version_that_failed_to_load_is_loaded_again() -> None:
    tries: list[int] = []

    async def load(version: int) -> Metrics:
        tries.append(version)
        if len(tries) == 1:
            raise RuntimeError("lost")
        return {}

    async def play() -> None:
        loader = WeightLoader(load, 1)
        with pytest.raises(RuntimeError, match="lost"):
            await loader.load(2)
        await loader.load(1)  # the engine may hold parts of the other

    asyncio.run(play())
    assert tries == [2, 1]
