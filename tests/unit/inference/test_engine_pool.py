"""EnginePool: load balancing, failures and recovery of replicas."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import pytest

from dojang.core.errors import ClusterError, ModelError, OutOfMemory, RanksLost
from dojang.inference.engine_pool import EnginePool
from dojang.types import Completion, Sampling

T = TypeVar("T")
SAMPLING = Sampling(temperature=1.0, max_tokens=10)


class Fake:
    """An engine whose moods can be set."""

    def __init__(self, name: int) -> None:
        self.name = name
        self.version = 0
        self.seen: list[tuple[int, ...]] = []
        self.error: Exception | None = None
        self.load_error: Exception | None = None
        self.gate = asyncio.Event()
        self.load_gate = asyncio.Event()
        self.gate.set()
        self.load_gate.set()
        self.loading = 0
        self.closed = False

    async def generate(self, prompt: Sequence[int], n: int, sampling: Sampling) -> list[Completion]:
        self.seen.append(tuple(prompt))
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return [Completion((prompt[0], index), (0.0, 0.0), "", "stop", self.version) for index in range(n)]

    async def load(self, version: int) -> None:
        Fake.most = max(Fake.most, sum(each.loading for each in Fake.all) + 1)
        self.loading = 1
        await asyncio.sleep(0)
        await self.load_gate.wait()
        self.loading = 0
        if self.load_error is not None:
            raise self.load_error
        self.version = version

    async def close(self) -> None:
        self.closed = True

    most = 0
    all: "list[Fake]" = []  # noqa: RUF012


def run(play: Callable[[EnginePool, list[Fake]], Awaitable[T]], count: int = 3, **options: float) -> T:
    async def whole() -> T:
        Fake.most, Fake.all = 0, [Fake(name) for name in range(count)]
        engines = Fake.all
        pool = EnginePool(engines, **{"timeout_s": 0.2, "retry_s": 0.01, **options})  # type: ignore[arg-type]
        try:
            return await asyncio.wait_for(play(pool, engines), 20)
        finally:
            await pool.close()
            assert all(each.closed for each in engines)

    return asyncio.run(whole())


def test_requests_go_to_the_least_loaded_replica() -> None:
    async def play(pool: EnginePool, engines: list[Fake]) -> list[int]:
        for each in engines:
            each.gate.clear()
        asked = [asyncio.create_task(pool.generate((at,), n, SAMPLING)) for at, n in enumerate((8, 1, 1, 1, 1, 1))]
        await asyncio.sleep(0.01)
        counts = [len(each.seen) for each in engines]
        for each in engines:
            each.gate.set()
        groups = await asyncio.gather(*asked)
        assert [group[0].tokens for group in groups] == [(at, 0) for at in range(6)]
        return counts

    assert run(play) == [1, 3, 2]


def test_requests_of_a_failed_replica_go_to_another() -> None:
    async def play(pool: EnginePool, engines: list[Fake]) -> None:
        engines[0].error = ConnectionError("gone")
        groups = await asyncio.gather(*(pool.generate((at,), 2, SAMPLING) for at in range(6)))
        assert [group[1].tokens for group in groups] == [(at, 1) for at in range(6)]
        assert pool.ready == 2
        engines[0].error = None
        await asyncio.sleep(0.1)
        assert pool.ready == 3

    run(play)


def test_requests_of_a_replica_without_memory_go_to_another() -> None:
    async def play(pool: EnginePool, engines: list[Fake]) -> None:
        engines[0].error = OutOfMemory("the GPU has too little memory")
        groups = await asyncio.gather(*(pool.generate((at,), 2, SAMPLING) for at in range(6)))
        assert [group[1].tokens for group in groups] == [(at, 1) for at in range(6)]
        assert pool.ready == 2

    run(play)


def test_invalid_request_does_not_exclude_a_replica() -> None:
    async def play(pool: EnginePool, engines: list[Fake]) -> None:
        engines[0].error = ModelError("the prompt is too long")
        with pytest.raises(ModelError):
            await pool.generate((1,), 1, SAMPLING)
        assert pool.ready == 3
        assert sum(len(each.seen) for each in engines) == 1

    run(play)


def test_all_replicas_load_new_weights() -> None:
    async def play(pool: EnginePool, engines: list[Fake]) -> list[int]:
        await pool.load(4)
        assert Fake.most == 3
        return [each.version for each in engines]

    assert run(play) == [4, 4, 4]


def test_replicas_can_load_one_at_a_time() -> None:
    async def play(pool: EnginePool, engines: list[Fake]) -> list[int]:
        await pool.load(4)
        assert Fake.most == 1
        return [each.version for each in engines]

    assert run(play, loading=1) == [4, 4, 4]


def test_slow_replica_is_excluded_and_rejoins() -> None:
    async def play(pool: EnginePool, engines: list[Fake]) -> None:
        engines[1].load_gate.clear()
        await pool.load(4)
        assert pool.ready == 2
        groups = await asyncio.gather(*(pool.generate((at,), 1, SAMPLING) for at in range(5)))
        assert {group[0].version for group in groups} == {4}
        await pool.load(5)
        engines[1].load_gate.set()
        await asyncio.sleep(0.1)
        assert pool.ready == 3
        assert [each.version for each in engines] == [5, 5, 5]  # not the 4 it was at

    run(play)


def test_unpublished_version_is_an_error() -> None:
    async def play(pool: EnginePool, engines: list[Fake]) -> None:
        for each in engines:
            each.load_error = LookupError("weights version 9 is not held")
        with pytest.raises(LookupError, match="version 9"):
            await pool.load(9)
        assert pool.ready == 3

    run(play)


def test_request_fails_when_all_replicas_fail() -> None:
    async def play(pool: EnginePool, engines: list[Fake]) -> None:
        for each in engines:
            each.error = ConnectionError("gone")
        with pytest.raises(ConnectionError, match="gone"):
            await pool.generate((1,), 1, SAMPLING)
        assert [len(each.seen) for each in engines] == [3, 3, 3]

    run(play)


def test_no_recovery_within_the_timeout_is_an_error() -> None:
    async def play(pool: EnginePool, engines: list[Fake]) -> None:
        await pool.load(1)
        for each in engines:
            each.error = each.load_error = ConnectionError("gone")
        with pytest.raises(ClusterError, match=r"no engine is ready.*engine 0: ConnectionError: gone"):
            await pool.generate((1,), 1, SAMPLING)

    run(play)


def test_lost_weights_are_reported_before_the_timeout() -> None:
    async def play(pool: EnginePool, engines: list[Fake]) -> None:
        await pool.load(1)
        for each in engines:
            each.error, each.load_error = RuntimeError("gone"), RanksLost("so are the weights")
        engines[0].load_error = RuntimeError("not yet")
        asked = asyncio.create_task(pool.generate((1,), 1, SAMPLING))
        await asyncio.sleep(0.2)
        assert not asked.done()  # one of them may still come back
        engines[0].load_error = RanksLost("so are the weights")
        await asked

    with pytest.raises(RanksLost, match="engine 0: RanksLost: so are the weights"):
        run(play, timeout_s=15.0)


def test_close_fails_running_requests() -> None:
    async def play(pool: EnginePool, engines: list[Fake]) -> None:
        await pool.close()
        with pytest.raises(RuntimeError, match="closed"):
            await pool.generate((1,), 1, SAMPLING)

    run(play)
