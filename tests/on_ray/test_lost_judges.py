"""Machines that are lost while judging begins there. No cluster is needed."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed here; make test-ray has it")

from dojang.cluster.ray import judge_pool, placement
from dojang.cluster.ray.actors import Lost
from dojang.cluster.ray.judges import RayJudge
from dojang.core.errors import ClusterError
from dojang.programs import Exam, IoTest, Isolation, Judgement, Submission
from dojang.types import Outcome

TRIVIAL = Submission("python3", "pass", Exam((IoTest("", ""),)))
RIGHT = Judgement(Outcome.ACCEPTED, (), 1, Isolation.NONE)


class Process:
    """In place of an actor."""

    def __init__(self, cluster: "Cluster", node: placement.Node) -> None:
        self.cluster, self.node = cluster, node

    def make(self, *_: Any) -> str:
        return "make"

    def begin(self, verb: str, *_: Any) -> str:
        return verb

    async def wait(self, asked: str) -> Any:
        if self.node.id in self.cluster.dead.get(asked, ()):
            self.cluster.asked += 1
            raise Lost("ActorDiedError")
        return RIGHT

    async def do(self, verb: str) -> None:
        return None

    def kill(self) -> None:
        return None


class Cluster:
    """Two machines. Who is `dead` in making, or judging, is found to be so only after some looks."""

    def __init__(self, looks: int, **dead: tuple[str, ...]) -> None:
        self.looks, self.dead, self.asked = looks, dead, 0
        self.machines = [placement.Node(name, f"10.0.0.{name}", 2, 0) for name in ("1", "2")]

    def nodes(self) -> list[placement.Node]:
        gone = {name for names in self.dead.values() for name in names} if self.asked > self.looks else set()
        return [each for each in self.machines if each.id not in gone]

    def spare(self) -> list[tuple[placement.Node, int]]:
        return [(each, 2) for each in self.nodes()]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[Cluster], list[str]]:
    """Where a trivial program is judged right, before a run."""

    def everywhere(cluster: Cluster) -> list[str]:
        monkeypatch.setattr(placement, "nodes", cluster.nodes)
        monkeypatch.setattr(placement, "_MOMENT_S", 0.0)
        monkeypatch.setattr(placement, "NOTICE_S", 1.0)
        monkeypatch.setattr(judge_pool, "NOTICE_S", 1.0)
        monkeypatch.setattr(judge_pool, "_LOOK_S", 0.01)
        monkeypatch.setattr(judge_pool, "spare", cluster.spare)
        monkeypatch.setattr(judge_pool, "spawn_at", lambda node, name: Process(cluster, node))

        async def whole() -> list[str]:
            judge = RayJudge(lambda seats: lambda: None, timeout_s=5.0)  # type: ignore[arg-type,return-value]
            try:
                found = await judge.everywhere(TRIVIAL)
            finally:
                await judge.close()
            return [address for address, judgement in found if judgement.outcome is Outcome.ACCEPTED]

        return asyncio.run(whole())

    return everywhere


def test_one_that_is_gone_before_it_has_begun_is_not_missed(play: Callable[[Cluster], list[str]]) -> None:
    assert play(Cluster(3, make=("2",))) == ["10.0.0.1"]


def test_one_that_is_gone_while_it_judges_is_not_missed(play: Callable[[Cluster], list[str]]) -> None:
    assert play(Cluster(0, judge=("2",))) == ["10.0.0.1"]


def test_one_that_stays_and_cannot_is_named(play: Callable[[Cluster], list[str]]) -> None:
    with pytest.raises(ClusterError, match=r"judging cannot begin on 10\.0\.0\.2: ActorDiedError"):
        play(Cluster(10**9, make=("2",)))
    assert play(Cluster(10**9, judge=("2",))) == ["10.0.0.1"]  # with a word of why for the other
