"""An engine whose process is lost while nobody asks it, and clusters that are not there. No cluster is needed."""

import asyncio
import os
import socket
import time
from typing import Any, ClassVar

import pytest

pytest.importorskip("ray", reason="Ray is not installed here; make test-ray has it")

from dojang import recipe as recipes
from dojang.engines.fleet import Fleet
from dojang.errors import ClusterError, ConfigError, RanksLost
from dojang.runtime.config import RayConfig
from dojang.runtime.ray import engines, places
from dojang.runtime.ray.actors import Lost
from dojang.runtime.ray.arrays import Shared


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
        fleet = Fleet([engines.RayEngine(None, None, weights)], patience_s=5)  # type: ignore[arg-type]
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
        fleet = Fleet([engines.RayEngine(None, None, weights)], patience_s=5)  # type: ignore[arg-type]
        try:
            await fleet.load(1)
        finally:
            await fleet.close()

    with pytest.raises(RanksLost, match="an engine could not be given new weights"):
        asyncio.run(play())


def test_a_cluster_that_is_not_there_is_known_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_WORD_S", 0.1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(ClusterError, match=f"cluster at {address} cannot be joined.*refused.*runtime.address"):
            places.connect(RayConfig(address=address))
    assert time.monotonic() - began < 10


def test_without_an_address_the_cluster_is_one_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.delitem(os.environ, "RAY_ADDRESS", raising=False)
    monkeypatch.setattr(places.ray, "init", lambda **options: asked.append(options))
    places.connect(RayConfig())
    assert asked[0]["address"] == "local"


def test_a_gpu_that_was_asked_for_and_is_nowhere_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    from dojang import spread

    monkeypatch.setattr(places, "nodes", lambda: [places.Node("1", "here", 8, 0)])
    with pytest.raises(ConfigError, match=r"model\.device=cuda, but the cluster has no GPU"):
        spread.settled(recipes.load("quickstart", ["runtime.name=ray", "model.device=cuda"]))
