"""Rollout workers as actors, with fakes instead of a cluster: places, losses and failures."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed here; make test-ray has it")

from dojang.build.ray_workers import judge_share
from dojang.cluster.ray import placement, rollout_workers
from dojang.cluster.ray.actors import ActorLost
from dojang.cluster.ray.rollout_workers import RayWorkers
from dojang.core.errors import ClusterError, ConfigError


class Cluster:
    """Places and actors. An actor works until `ended` is set, or raises what `errors` has."""

    def __init__(self) -> None:
        self.room = 0
        self.placed: list[int] = []
        self.requested = 0
        self.released = 0
        self.started: list[int] = []
        self.killed: list[int] = []
        self.gone: set[int] = set()
        """Actors whose node is gone."""
        self.errors: dict[int, Exception] = {}
        self.lost = asyncio.Event()
        self.ended = asyncio.Event()
        self.tokens: list[str] = []

    def request(self, *, cpus: float, gpus: float) -> int:
        self.requested += 1
        return self.requested

    def is_placed(self, place: int) -> bool:
        if place not in self.placed and len(self.placed) < self.room:
            self.placed.append(place)
        return place in self.placed

    def release(self, places: list[int]) -> None:
        self.released += len(places)

    def start_actor(self, place: int, name: str) -> "Worker":
        assert name == "RolloutWorker"
        self.started.append(place)
        return Worker(self, len(self.started))


class Worker:
    def __init__(self, cluster: Cluster, number: int) -> None:
        self._cluster, self._number = cluster, number

    async def prepare(self, factory: Callable[[], Any]) -> None:
        await asyncio.sleep(0)

    async def call(self, method: str, *arguments: Any) -> Any:
        if method == "name":
            return f"here:{self._number}"
        assert method == "run"
        self._cluster.tokens.append(arguments[1])
        if (error := self._cluster.errors.pop(self._number, None)) is not None:
            raise error
        await self._cluster.ended.wait()
        return None

    def node_is_gone(self) -> bool:
        return self._number in self._cluster.gone

    def kill(self) -> None:
        self._cluster.killed.append(self._number)


def play(work: Callable[[Cluster], Coroutine[Any, Any, None]], monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        cluster = Cluster()
        for name in ("request", "is_placed", "release", "start_actor"):
            monkeypatch.setattr(rollout_workers, name, getattr(cluster, name))
        monkeypatch.setattr(rollout_workers, "why_unplaced", lambda cpus, gpus: f"each needs {cpus:g} CPU")
        for name in ("_POLL_S", "_WARN_S", "_RETRY_S"):
            monkeypatch.setattr(rollout_workers, name, 0.02)
        await asyncio.wait_for(work(cluster), 30)

    asyncio.run(run())


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def make(count: int) -> RayWorkers:
    return RayWorkers(lambda: None, count, cpus=2.0, gpus=0.0, timeout_s=10.0)  # type: ignore[arg-type, return-value]


def test_workers_without_room_are_named_and_start_when_a_node_joins(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(cluster: Cluster) -> None:
        cluster.room, ends = 1, list[tuple[str, str]]()
        workers = make(3)

        def on_end(name: str, reason: str) -> bool:
            ends.append((name, reason))
            return not cluster.ended.is_set()

        workers.start("http://here:1", "secret", on_end)
        await until(workers.describe)
        assert len(cluster.started) == 1
        assert workers.describe() == "rollout workers 2, 3 of 3 not started: each needs 2 CPU"
        await until(lambda: any("goes on without, until" in each.message for each in caplog.records))
        cluster.room = 3
        await until(lambda: len(cluster.started) == 3)
        assert workers.describe() == ""
        cluster.ended.set()
        await workers.close(5.0)
        assert sorted(cluster.killed) == [1, 2, 3]
        assert cluster.released == 3
        assert cluster.tokens == ["secret"] * 3
        assert [reason for _, reason in ends] == ["it ended before the run"] * 3

    with caplog.at_level(logging.WARNING):
        play(work, monkeypatch)


def test_a_lost_node_is_no_failure_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(cluster: Cluster) -> None:
        cluster.room, ends = 1, list[tuple[str, str]]()
        cluster.errors = {
            1: ActorLost("its node is gone"),
            2: ActorLost("it was killed"),
            3: ConfigError("no such data"),
        }
        cluster.gone = {1}

        def on_end(name: str, reason: str) -> bool:
            ends.append((name, reason))
            return not cluster.ended.is_set()

        workers = make(1)
        workers.start("http://here:1", "secret", on_end)
        await until(lambda: len(cluster.started) == 4)
        assert ends == [("here:1", ""), ("here:2", "it was killed"), ("here:3", "ConfigError: no such data")]
        await workers.close(0.1)  # one that does not end is killed
        assert cluster.killed == [1, 2, 3, 4]

    play(work, monkeypatch)


def test_a_worker_whose_place_is_lost_while_it_starts_waits_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(cluster: Cluster) -> None:
        cluster.room, ends = 1, list[tuple[str, str]]()
        cluster.gone = {1}

        async def never(self: Worker, factory: Any) -> None:
            await asyncio.Event().wait()

        def on_end(name: str, reason: str) -> bool:
            ends.append((name, reason))
            return True

        with monkeypatch.context() as patch:
            patch.setattr(Worker, "prepare", never)
            workers = make(1)
            workers.start("http://here:1", "secret", on_end)
            await until(lambda: cluster.started)
            cluster.room = 0
            cluster.placed.clear()
            await until(lambda: ends)
        await until(workers.describe)
        assert [reason for _, reason in ends] == [""]
        cluster.room = 1
        await until(lambda: cluster.tokens)
        await workers.close(0.1)
        assert cluster.released == 1

    play(work, monkeypatch)


def test_a_cluster_of_this_machine_alone_refuses_workers_that_can_never_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "nodes", lambda: [placement.Node("1", "here", 4, 0)])
    monkeypatch.setattr(placement.ray, "available_resources", lambda: {"CPU": 2.0})
    place = placement.Placement(None, 0, 2.0, 0.0)
    monkeypatch.setattr(placement, "_reserved", [place])  # trainer and engine
    monkeypatch.setattr(placement, "_local_cluster", True)
    placement.refuse_too_many("rollout workers", 2, cpus=1, gpus=0, remedy="see loop.workers")
    with pytest.raises(
        ClusterError, match=r"rollout workers need 3 x \(1 CPU\), more than this machine has.*loop.workers"
    ):
        placement.refuse_too_many("rollout workers", 3, cpus=1, gpus=0, remedy="see loop.workers")
    monkeypatch.setattr(placement, "_local_cluster", False)  # others may join
    placement.refuse_too_many("rollout workers", 3, cpus=1, gpus=0, remedy="see loop.workers")


def test_reasons_name_what_the_nodes_have(monkeypatch: pytest.MonkeyPatch) -> None:
    there = [placement.Node("1", "here", 8, 0), placement.Node("2", "there", 8, 4), placement.Node("3", "there", 8, 4)]
    monkeypatch.setattr(placement, "nodes", lambda: there)
    monkeypatch.setattr(placement.ray, "available_resources", lambda: {"CPU": 20.0})
    assert placement.why_unplaced(1, 8) == (
        "each needs 1 CPU, 8 GPU on one node, and the nodes have 8 CPU, 0 GPU; 8 CPU, 4 GPU"
    )
    assert "all are in use (free: 20 CPU, 0 GPU, on 3 nodes)" in placement.why_unplaced(1, 1)


def test_workers_share_the_cpus_of_a_node_for_judging() -> None:
    assert judge_share(192, 8, 8, cpus=1, gpus=1) == 24
    assert judge_share(192, 8, 2, cpus=1, gpus=1) == 96
    assert judge_share(8, 0, 100, cpus=2, gpus=0) == 2
    assert judge_share(1, 0, 4, cpus=1, gpus=0) == 1
    assert judge_share(1, 1, 4, cpus=0.5, gpus=0.5) == 1
