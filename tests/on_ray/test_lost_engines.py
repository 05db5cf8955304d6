"""Lost engine actors and unreachable clusters, with fakes instead of a cluster."""

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
from dojang.cluster.ray.actors import ActorLost
from dojang.cluster.ray.file_transfer import FileTransfer
from dojang.cluster.ray.object_store import LatestWeights, PublishedWeights
from dojang.cluster.runtime_config import RayConfig
from dojang.config import recipe as recipes
from dojang.core.errors import ClusterError, ConfigError, RanksLost
from dojang.inference.engine_pool import EnginePool


class Process:
    """Fake actor; some are lost."""

    made: ClassVar[list["Process"]] = []
    gone = 0

    def __init__(self) -> None:
        self.loaded: list[int] = []
        self.dead = len(Process.made) < Process.gone
        Process.made.append(self)

    async def prepare(self, factory: Any) -> None:
        return None

    async def call(self, method: str, *arguments: Any) -> None:
        if self.dead:
            raise ActorLost("ActorDiedError")
        if method == "load":
            self.loaded.append(arguments[0])

    def kill(self) -> None:
        self.dead = True


@pytest.fixture
def weights(monkeypatch: pytest.MonkeyPatch) -> LatestWeights:
    monkeypatch.setattr(Process, "made", [])
    monkeypatch.setattr(Process, "gone", 0)
    monkeypatch.setattr(engines, "start_actor", lambda place, name: Process())
    monkeypatch.setattr(engines, "release", lambda places: None)
    found = LatestWeights()
    found.announce(1, PublishedWeights("weights"))
    return found


def test_only_engine_is_replaced_if_lost_during_training(weights: LatestWeights) -> None:
    async def play() -> None:
        fleet = EnginePool([engines.RayEngine(None, None, weights, 5.0)], timeout_s=5)  # type: ignore[arg-type]
        await fleet.load(1)
        Process.made[0].dead = True
        weights.announce(2, PublishedWeights("weights"))
        await fleet.load(2)
        await fleet.close()

    asyncio.run(play())
    assert [each.loaded for each in Process.made] == [[1], [2]]


def test_loss_of_the_replacement_restarts_the_run(weights: LatestWeights, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Process, "gone", 9)

    async def play() -> None:
        fleet = EnginePool([engines.RayEngine(None, None, weights, 5.0)], timeout_s=5)  # type: ignore[arg-type]
        try:
            await fleet.load(1)
        finally:
            await fleet.close()

    with pytest.raises(RanksLost, match="an engine could not load new weights"):
        asyncio.run(play())


def test_unanswered_call_is_lost_once_the_node_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: Iterator[frozenset[str]] = iter([frozenset({"1", "2"}), frozenset({"1"})])
    never = SimpleNamespace(remote=lambda *_: asyncio.get_running_loop().create_future())
    asked = list[str]()
    silent = actors.Actor(SimpleNamespace(call=never, node=SimpleNamespace(remote=lambda: asked.append("who?"))), "2")
    monkeypatch.setattr(actors, "_POLL_S", 0.01)
    monkeypatch.setattr(actors, "alive_node_ids", lambda: next(looks))
    with pytest.raises(ActorLost, match="its node is gone"):
        asyncio.run(silent.call("generate"))
    assert asked == ["who?"]  # by which a connection that broke without a word is known to be broken
    looks = iter([frozenset({"1", "2"}), frozenset({"1"})])
    monkeypatch.setattr(actors.ray, "wait", lambda waiting, timeout: ([], waiting))
    with pytest.raises(ActorLost, match="its node is gone"):
        actors.gather([silent], ["a reference"], timeout_s=100)
    looks = itertools.repeat(frozenset({"2"}))
    with pytest.raises(ActorLost, match="no result within"):
        actors.gather([silent], ["a reference"], timeout_s=0.1)


def test_a_cluster_that_is_not_there_is_known_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_WARN_S", 0.1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(
            ClusterError, match=f"cannot connect to the Ray cluster at {address}.*refused.*runtime.address"
        ):
            placement.connect(RayConfig(address=address))
    assert time.monotonic() - began < 10


def test_without_an_address_the_cluster_is_one_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.delitem(os.environ, "RAY_ADDRESS", raising=False)
    monkeypatch.setattr(placement.ray, "init", lambda **options: asked.append(options))
    monkeypatch.setattr(placement, "_local_cluster", False)
    placement.connect(RayConfig())
    assert asked[0]["address"] == "local"
    # No further node will join a local cluster, so waiting would be in vain.
    monkeypatch.setattr(placement, "nodes", lambda: [placement.Node("1", "here", 4, 0)])
    monkeypatch.setattr(placement.ray, "available_resources", lambda: {"CPU": 4.0})
    with pytest.raises(ClusterError, match=r"trainers need 5 x \(1 CPU\), more than this machine has \(free: 4"):
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


def test_engine_start_is_retried_until_ray_notices(weights: LatestWeights, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_RETRY_S", 0.01)

    async def prepare(self: Process, factory: Any) -> None:
        if self is not Process.made[-1] or len(Process.made) < 4:
            raise ActorLost("ActorDiedError")

    monkeypatch.setattr(Process, "prepare", prepare)
    asyncio.run(engines.RayEngine(None, None, weights, 5.0).load(1))  # type: ignore[arg-type]
    assert [each.loaded for each in Process.made] == [[], [], [], [1]]
    monkeypatch.setattr(engines, "NODE_TIMEOUT_S", 0.0)
    monkeypatch.setattr(Process, "made", [])
    with pytest.raises(RanksLost, match="ActorDiedError"):
        asyncio.run(engines.RayEngine(None, None, weights, 5.0).load(1))  # type: ignore[arg-type]


def test_start_or_load_timeout_is_a_loss(weights: LatestWeights, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: Any) -> None:
        await asyncio.Event().wait()

    for verb, said in (("prepare", "did not start within"), ("call", "weights did not arrive within")):
        with monkeypatch.context() as patch:
            patch.setattr(Process, verb, never)
            patch.setattr(Process, "made", [])
            with pytest.raises(RanksLost, match=said):
                asyncio.run(engines.RayEngine(None, None, weights, 0.05).load(1))  # type: ignore[arg-type]
            assert all(each.dead for each in Process.made)


def test_folders_of_killed_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine = FileTransfer().make_folder()
    with subprocess.Popen(["true"]) as process:
        pass
    left = tmp_path / mine.name.replace(str(os.getpid()), str(process.pid))
    (left / "in").mkdir(parents=True)
    other = tmp_path / "dojang-else"
    other.mkdir()
    another = FileTransfer().make_folder()
    assert sorted(tmp_path.iterdir()) == sorted([mine, another, other])


def test_cuda_without_a_gpu_in_the_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from dojang.build import ray

    monkeypatch.setattr(placement, "nodes", lambda: [placement.Node("1", "here", 8, 0)])
    with pytest.raises(ConfigError, match=r"model\.device=cuda, but the cluster has no GPU"):
        ray.resolve_numerics(recipes.load("quickstart", ["runtime.name=ray", "model.device=cuda"]))
