"""Times that the producer of whole batches reports; what it produces is tested with the loop (test_train.py)."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from async_stand_ins import CASES, Engine, Evaluation, Tracker, make_run
from dojang.loop.run_state import State
from dojang.loop.train import train
from dojang.types import Group, Problem
from virtual_clock import run_virtually


class SlowEvaluation(Evaluation):
    async def run(self, problem: Problem, prompt_index: int) -> Group:
        await asyncio.sleep(100.0)
        return await super().run(problem, prompt_index)


@pytest.mark.parametrize("mode", ["sync", "overlap"])
def test_the_engine_is_not_idle_during_evaluations(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: str) -> None:
    case, tracker = CASES[0], Tracker()
    run = make_run(case, mode, 6, tmp_path, Engine(case), tracker)
    run = replace(run, eval_workflow=SlowEvaluation(), eval_every=2)
    run_virtually(monkeypatch, train(run, State(), asyncio.Event()))
    idle = [row["timing_s/idle_engine"] for row in tracker.rows]
    expected = {"sync": case.update_s, "overlap": 0.0}[mode]
    assert idle[2:] == pytest.approx([expected] * 4, abs=1e-6)
