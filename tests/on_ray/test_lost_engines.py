"""An engine whose process is lost while nobody asks it, and clusters that are not there. No cluster is needed."""

import asyncio
import itertools
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

pytest.importorskip("ray", reason="Ray is not installed here; make test-ray has it")

from dojang.cluster.ray import actors, engines, placement
from dojang.cluster.ray.actors import Lost
from dojang.cluster.ray.file_transfer import Luggage
from dojang.cluster.ray.object_store import Shared
from dojang.cluster.runtime_config import RayConfig
from dojang.config import recipe as recipes
from dojang.core.errors import ClusterError, ConfigError, RanksLost
from dojang.inference.engine_pool import Fleet


class Process:
    """In place of an actor; some are gone."""

    made: ClassVar[list["Process"]] = []
    gone = 0

    def __init__(self) -> None:
        self.loaded: list[int] = []
        self.dead = len(Process.made) < Process.gone
        Process.made.append(self)

    async def prepare(self, factory: Any) -> None:
        return None

    async def do(self, verb: str, *arguments: Any) -> None:
        if self.dead:
            raise Lost("ActorDiedError")
        if verb == "load":
            self.loaded.append(arguments[0])

    def kill(self) -> None:
        self.dead = True


@pytest.fixture
def weights(monkeypatch: pytest.MonkeyPatch) -> Shared:
    monkeypatch.setattr(Process, "made", [])
    monkeypatch.setattr(Process, "gone", 0)
    monkeypatch.setattr(engines, "spawn", lambda place, name: Process())
    monkeypatch.setattr(engines, "give_back", lambda places: None)
    found = Shared()
    found.announce(1, "weights")
    return found


def test_the_only_engine_is_replaced_if_it_is_lost_while_others_learn(weights: Shared) -> None:
    async def play() -> None:
        fleet = Fleet([engines.RayEngine(None, None, weights, 5.0)], timeout_s=5)  # type: ignore[arg-type]
        await fleet.load(1)
        Process.made[0].dead = True
        weights.announce(2, "weights")
        await fleet.load(2)
        await fleet.close()

    asyncio.run(play())
    assert [each.loaded for each in Process.made] == [[1], [2]]


def test_if_a_new_one_is_lost_too_the_run_can_begin_again(weights: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Process, "gone", 9)

    async def play() -> None:
        fleet = Fleet([engines.RayEngine(None, None, weights, 5.0)], timeout_s=5)  # type: ignore[arg-type]
        try:
            await fleet.load(1)
        finally:
            await fleet.close()

    with pytest.raises(RanksLost, match="an engine could not be given new weights"):
        asyncio.run(play())


def test_who_does_not_answer_is_lost_once_the_machine_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: Iterator[frozenset[str]] = iter([frozenset({"1", "2"}), frozenset({"1"})])
    never = SimpleNamespace(remote=lambda *_: asyncio.get_running_loop().create_future())
    asked = list[str]()
    silent = actors.Actor(SimpleNamespace(do=never, node=SimpleNamespace(remote=lambda: asked.append("who?"))), "2")
    monkeypatch.setattr(actors, "_LOOK_S", 0.01)
    monkeypatch.setattr(actors, "alive", lambda: next(looks))
    with pytest.raises(Lost, match="its machine is gone"):
        asyncio.run(silent.do("generate"))
    assert asked == ["who?"]  # by which a connection that broke without a word is known to be broken
    looks = iter([frozenset({"1", "2"}), frozenset({"1"})])
    monkeypatch.setattr(actors.ray, "wait", lambda waiting, timeout: ([], waiting))
    with pytest.raises(Lost, match="its machine is gone"):
        actors.gather([silent], ["a reference"], timeout_s=100)
    looks = itertools.repeat(frozenset({"2"}))
    with pytest.raises(Lost, match="nothing came within"):
        actors.gather([silent], ["a reference"], timeout_s=0.1)


def test_a_cluster_that_is_not_there_is_known_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_WORD_S", 0.1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(ClusterError, match=f"cluster at {address} cannot be joined.*refused.*runtime.address"):
            placement.connect(RayConfig(address=address))
    assert time.monotonic() - began < 10


def test_without_an_address_the_cluster_is_one_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.delitem(os.environ, "RAY_ADDRESS", raising=False)
    monkeypatch.setattr(placement.ray, "init", lambda **options: asked.append(options))
    monkeypatch.setattr(placement, "_alone", False)
    placement.connect(RayConfig())
    assert asked[0]["address"] == "local"
    # Then nobody else will come, and to wait for more than there is would be in vain.
    monkeypatch.setattr(placement, "nodes", lambda: [placement.Node("1", "here", 4, 0)])
    monkeypatch.setattr(placement.ray, "available_resources", lambda: {"CPU": 4.0})
    with pytest.raises(ClusterError, match=r"trainers need 5 x \(1 CPU\), and this machine has not got that \(free: 4"):
        placement.reserve("trainers", 5, cpus=1, gpus=0, strategy="PACK", timeout_s=1e9)
    with pytest.raises(ClusterError, match=r"engine 1 need 1 x \(1 CPU, 1 GPU\)"):
        placement.reserve("engine 1", 1, cpus=1, gpus=1, strategy="PACK", timeout_s=1e9)


def test_gpus_that_were_lost_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    there = [placement.Node("1", "here", 8, 0), placement.Node("2", "there", 8, 4)]
    monkeypatch.setattr(placement, "_had_gpus", False)
    monkeypatch.setattr(placement, "nodes", lambda: there)
    assert placement.gpus_each(RayConfig(), "auto") == 1
    del there[1]
    assert placement.gpus_each(RayConfig(), "auto") == 1  # and there will be none, unless they come back
    assert placement.gpus_each(RayConfig(), "cpu") == 0


def test_an_engine_is_tried_again_until_ray_has_noticed(weights: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_AGAIN_S", 0.01)

    async def prepare(self: Process, factory: Any) -> None:
        if self is not Process.made[-1] or len(Process.made) < 4:
            raise Lost("ActorDiedError")

    monkeypatch.setattr(Process, "prepare", prepare)
    asyncio.run(engines.RayEngine(None, None, weights, 5.0).load(1))  # type: ignore[arg-type]
    assert [each.loaded for each in Process.made] == [[], [], [], [1]]
    monkeypatch.setattr(engines, "NOTICE_S", 0.0)
    monkeypatch.setattr(Process, "made", [])
    with pytest.raises(RanksLost, match="ActorDiedError"):
        asyncio.run(engines.RayEngine(None, None, weights, 5.0).load(1))  # type: ignore[arg-type]


def test_one_that_does_not_begin_or_load_in_time_is_lost(weights: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: Any) -> None:
        await asyncio.Event().wait()

    for verb, said in (("prepare", "did not begin within"), ("do", "weights did not come within")):
        with monkeypatch.context() as patch:
            patch.setattr(Process, verb, never)
            patch.setattr(Process, "made", [])
            with pytest.raises(RanksLost, match=said):
                asyncio.run(engines.RayEngine(None, None, weights, 0.05).load(1))  # type: ignore[arg-type]
            assert all(each.dead for each in Process.made)


def test_folders_of_processes_that_were_killed_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine = Luggage().unpack()
    with subprocess.Popen(["true"]) as process:
        pass
    left = tmp_path / mine.name.replace(str(os.getpid()), str(process.pid))
    (left / "in").mkdir(parents=True)
    other = tmp_path / "dojang-else"
    other.mkdir()
    another = Luggage().unpack()
    assert sorted(tmp_path.iterdir()) == sorted([mine, another, other])


def test_a_gpu_that_was_asked_for_and_is_nowhere_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    from dojang.build import ray

    monkeypatch.setattr(placement, "nodes", lambda: [placement.Node("1", "here", 8, 0)])
    with pytest.raises(ConfigError, match=r"model\.device=cuda, but the cluster has no GPU"):
        ray.settled(recipes.load("quickstart", ["runtime.name=ray", "model.device=cuda"]))
