"""Machines that are lost while judging begins there. No cluster is needed."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed here; make test-ray has it")

from dojang.cluster.ray import judge_pool, placement
from dojang.cluster.ray.actors import ActorLost
from dojang.cluster.ray.judges import RayJudge
from dojang.core.errors import ClusterError
from dojang.programs import IoTest, Isolation, Judgement, Submission, TestSuite
from dojang.types import Outcome

TRIVIAL = Submission("python3", "pass", TestSuite((IoTest("", ""),)))
RIGHT = Judgement(Outcome.ACCEPTED, (), 1, Isolation.NONE)


class Process:
    """Fake actor."""

    def __init__(self, cluster: "Cluster", node: placement.Node) -> None:
        self.cluster, self.node = cluster, node

    def make(self, *_: Any) -> str:
        return "make"

    def submit(self, method: str, *_: Any) -> str:
        return method

    async def wait(self, asked: str) -> Any:
        if self.node.id in self.cluster.dead.get(asked, ()):
            self.cluster.asked += 1
            raise ActorLost("ActorDiedError")
        return RIGHT

    async def call(self, method: str) -> None:
        return None

    def kill(self) -> None:
        return None


class Cluster:
    """Two nodes. Those that are `dead` in making or judging are reported as such only after some checks."""

    def __init__(self, looks: int, **dead: tuple[str, ...]) -> None:
        self.looks, self.dead, self.asked = looks, dead, 0
        self.machines = [placement.Node(name, f"10.0.0.{name}", 2, 0) for name in ("1", "2")]

    def nodes(self) -> list[placement.Node]:
        gone = {name for names in self.dead.values() for name in names} if self.asked > self.looks else set()
        return [each for each in self.machines if each.id not in gone]

    def spare_cpus(self) -> list[tuple[placement.Node, int]]:
        return [(each, 2) for each in self.nodes()]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[Cluster], list[str]]:
    """Addresses of the nodes that judge a trivial program correctly, before a run."""

    def everywhere(cluster: Cluster) -> list[str]:
        monkeypatch.setattr(placement, "nodes", cluster.nodes)
        monkeypatch.setattr(placement, "_ALIVE_CACHE_S", 0.0)
        monkeypatch.setattr(placement, "NODE_TIMEOUT_S", 1.0)
        monkeypatch.setattr(judge_pool, "NODE_TIMEOUT_S", 1.0)
        monkeypatch.setattr(judge_pool, "_POLL_S", 0.01)
        monkeypatch.setattr(judge_pool, "spare_cpus", cluster.spare_cpus)
        monkeypatch.setattr(judge_pool, "start_actor_on", lambda node, name: Process(cluster, node))

        async def whole() -> list[str]:
            judge = RayJudge(lambda concurrency: lambda: None, timeout_s=5.0)  # type: ignore[arg-type,return-value]
            try:
                found = await judge.judge_on_every_node(TRIVIAL)
            finally:
                await judge.close()
            return [address for address, judgement in found if judgement.outcome is Outcome.ACCEPTED]

        return asyncio.run(whole())

    return everywhere


def test_node_lost_before_start_is_ignored(play: Callable[[Cluster], list[str]]) -> None:
    assert play(Cluster(3, make=("2",))) == ["10.0.0.1"]


def test_node_lost_while_judging_is_ignored(play: Callable[[Cluster], list[str]]) -> None:
    assert play(Cluster(0, judge=("2",))) == ["10.0.0.1"]


def test_live_node_that_cannot_judge_is_named(play: Callable[[Cluster], list[str]]) -> None:
    with pytest.raises(ClusterError, match=r"judging cannot start on 10\.0\.0\.2: ActorDiedError"):
        play(Cluster(10**9, make=("2",)))
    assert play(Cluster(10**9, judge=("2",))) == ["10.0.0.1"]  # the other's judgement says why
