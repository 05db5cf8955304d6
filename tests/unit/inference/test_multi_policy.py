import asyncio
from collections.abc import Sequence

from dojang.inference.multi_policy import MultiPolicyEngine
from dojang.protocols import RolloutEngine
from dojang.types import Completion, Sampling


class Noting:
    """An engine that notes what it is asked."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self._name, self._notes = name, notes

    async def generate(self, prompt: Sequence[int], n: int, sampling: Sampling) -> list[Completion]:
        self._notes.append(f"{self._name} generates {n}")
        return []

    async def load(self, version: int) -> None:
        self._notes.append(f"{self._name} loads {version}")

    async def close(self) -> None:
        self._notes.append(f"{self._name} closes")


def test_both_engines_load_a_version_and_the_first_generates() -> None:
    notes = list[str]()
    pair: RolloutEngine = MultiPolicyEngine(Noting("coder", notes), Noting("tester", notes))

    async def work() -> None:
        await pair.load(7)
        await pair.generate((1,), 3, Sampling(1.0, 1))
        await pair.load(8)
        await pair.close()

    asyncio.run(work())
    assert notes == [
        *("coder loads 7", "tester loads 7", "coder generates 3", "coder loads 8", "tester loads 8"),
        *("coder closes", "tester closes"),
    ]
