"""Runs on Ray, seen from the driver: begun again if trainers are lost, unless they are to stop, or there is no way."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dojang.build import assemble, prepare
from dojang.config import recipe as recipes
from dojang.core.errors import ClusterError, Interrupted, RanksLost
from dojang.runs import training
from dojang.runs.stop import StopRequest

WORDS = ("quickstart", ["runtime.name=ray", "runtime.max_failures=1"])


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """A run takes them; this process goes on."""
    before = {number: signal.getsignal(number) for number in training.STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Nothing:
    """A part of a run that does nothing."""

    async def close(self) -> None:
        return None


class Parts:
    """What the loop closes at the end."""

    engine = trainer = Nothing()
    distiller = None
    tracker = type("Tracker", (), {"close": lambda self: None})()


def test_a_stopped_run_does_not_restart_after_lost_trainers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def train(run: Any, state: Any, stop: asyncio.Event) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await stop.wait()
        raise RanksLost("a trainer was lost (with its machine)")

    monkeypatch.setattr("dojang.loop.train.train", train)
    with pytest.raises(Interrupted, match="stopped, but a trainer was lost"):
        asyncio.run(training._loop(Parts(), None, Nothing(), StopRequest(), print))  # type: ignore[arg-type]


def test_a_run_that_cannot_begin_again_leaves_a_summary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    prepared = SimpleNamespace(judge=Nothing(), config=recipes.load(*WORDS), dropped={})
    lives, told = iter([prepared, None]), list[str]()

    def prepare(config: Any) -> Any:
        if (found := next(lives)) is None:
            raise ClusterError("no room")
        return found

    def train(*_: Any, **__: Any) -> None:
        raise RanksLost("a trainer was lost")

    def trackers(*_: Any, live: bool = True) -> Any:
        def finish(status: str, *, hurry: bool) -> None:
            told.append(f"{status}, {live=}, {hurry=}")

        return SimpleNamespace(start=lambda: None, finish=finish, close=lambda: None)

    monkeypatch.setattr(assemble, "prepare", prepare)
    monkeypatch.setattr(training, "_train", train)
    monkeypatch.setattr(training, "_open_trackers", trackers)
    with pytest.raises(ClusterError, match=r"no room\nresume with: .* resume "):
        training.run(*WORDS, tmp_path / "run", resume=False)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert f"resume {tmp_path}/run" in summary["resume"]
    assert told == ["failed, live=False, hurry=True"]


def test_a_dry_run_says_what_is_where_on_a_cluster(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    monkeypatch.setattr(prepare, "check_packages", lambda config: None)  # Ray may not be installed here
    training.dry_run("quickstart", ["runtime=ray", "runtime.trainers=2", "model.device=cuda"])  # here is none, perhaps
    said = capsys.readouterr().out
    assert "on a Ray cluster, runtime.trainers=2, runtime.engines=1" in said
    assert "needs 3 CPUs, and 3 GPUs if it has any; a dry run does not connect to the cluster at head:6379" in said
    stream = ["runtime=ray", "loop.mode=stream", "loop.workers=8", "runtime.cpus=4", "model.device=cuda"]
    training.dry_run("quickstart", stream)
    said = capsys.readouterr().out
    assert "rollout workers need 4 CPUs, and 1 GPUs if it has any, each of 8; those without room start when" in said
    assert "loop.lag=1; sampled by the engines, 8 rollout workers on the cluster" in said
