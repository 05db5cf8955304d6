"""Rollout workers against a real service: weights first, new versions meanwhile, restarts, draining, errors."""

import asyncio
from typing import Any

import httpx
import pytest
import torch

from dojang.core.errors import ClusterError
from dojang.loop.ledger import token_versions
from dojang.loop.rollout_queue import RolloutQueue
from dojang.rollout_service.worker import RolloutWorker
from dojang.weight_sync.pack import Pack
from dojang.weight_sync.versions import WeightVersions
from service_parts import client_of, parts_of, play, queue_of, run_of, served, tensors, train
from weight_soak import DictEngine


def holds(engine: DictEngine, version: int) -> bool:
    return engine.version == version and all(torch.equal(engine.weights[n], t) for n, t in tensors(version).items())


def test_two_workers_sample_all_prompts_of_two_policies_within_the_lag() -> None:
    async def test() -> None:
        queue = queue_of(3, 2, steps=12)
        run = run_of("coder", "tester")
        pause = [0.001, 0.02]

        async def work(index: int) -> None:
            await asyncio.sleep(pause[index % 2])

        async with served(run, queue) as (url, service), client_of(url) as client:
            parts = [parts_of("coder", "tester", work=work, name=f"here:{at}") for at in range(2)]
            working = [asyncio.create_task(RolloutWorker(client, each, asyncio.Event()).run()) for each, _ in parts]
            batches = await train(queue, run.weights, 12)
            await asyncio.gather(*working)  # they notice the end
            assert service.workers == []
        assert batches == [[3 * step, 3 * step + 1, 3 * step + 2] for step in range(12)]
        assert queue.ledger.largest_staleness <= 2
        (_, first), (_, second) = parts
        assert sorted(first.ran + second.ran) == list(range(36))
        assert first.ran
        assert second.ran
        assert max(engine.version for engine in first.engines.values()) > 0

    play(test())


def test_nothing_is_sampled_before_the_checksum_of_the_weights_agrees() -> None:
    class Wrong(WeightVersions):
        """Sends weights that are not those of the checksum."""

        def pack(self, version: int, base: int | None = None, *, merge: bool = False) -> Pack:
            return Pack("full", version, None, "", self.checksum(version), tensors(99))

    async def test() -> None:
        store = Wrong(torch.float32)
        store.publish(0, tensors(0))
        queue = queue_of()
        async with served(run_of(weights={"policy": store}), queue) as (url, service), client_of(url) as client:
            parts, workflow = parts_of("policy")
            with pytest.raises(ValueError, match="damaged"):
                await RolloutWorker(client, parts, asyncio.Event()).run()
            assert workflow.ran == []
            assert service.workers == []
            assert queue.ledger.counts()["drawn"] == 0

    play(test())


def test_new_weights_are_loaded_while_a_rollout_goes_on() -> None:
    async def test() -> None:
        queue, run = queue_of(1, 1), run_of()
        slow = asyncio.Event()

        async def work(index: int) -> None:
            if index == 1:
                await slow.wait()

        async with served(run, queue) as (url, _), client_of(url) as client:
            parts, workflow = parts_of("policy", work=work)
            stop = asyncio.Event()
            working = asyncio.create_task(RolloutWorker(client, parts, stop).run())
            await train(queue, run.weights, 1)
            engine = workflow.engines["policy"]
            while not holds(engine, 1):
                await asyncio.sleep(0.01)
            slow.set()
            (group,) = await queue.next_batch()
            assert token_versions(group) == (0, 1), "its tokens have the versions of both weights"
            stop.set()
            await working

    play(test())


def test_told_to_stop_it_finishes_delivers_and_leaves() -> None:
    async def test() -> None:
        queue = queue_of(2, 0)
        begun, proceed = asyncio.Event(), asyncio.Event()

        async def work(index: int) -> None:
            begun.set()
            await proceed.wait()

        async with served(run_of(), queue) as (url, service), client_of(url) as client:
            parts, workflow = parts_of("policy", work=work, slots=1)
            stop = asyncio.Event()
            working = asyncio.create_task(RolloutWorker(client, parts, stop).run())
            await begun.wait()
            stop.set()
            await asyncio.sleep(0.1)
            assert not working.done()
            proceed.set()
            await working
            assert workflow.ran == [0]
            assert queue.ledger.counts() | {"ready": 1, "drawn": 0} == queue.ledger.counts()
            assert service.workers == []

    play(test())


def test_told_to_stop_while_the_run_is_gone_it_leaves_at_once() -> None:
    """The client waits much longer for the run to come back."""

    async def test() -> None:
        async with served(run_of(), queue_of()) as (url, _):
            pass
        async with client_of(url) as client:
            parts, workflow = parts_of("policy")
            stop = asyncio.Event()
            working = asyncio.create_task(RolloutWorker(client, parts, stop).run())
            await asyncio.sleep(0.1)
            assert not working.done()
            stop.set()
            await asyncio.wait_for(working, 1)
            assert workflow.ran == []

    play(test())


def test_after_a_restart_of_the_trainer_rollouts_are_dropped_and_full_weights_fetched() -> None:
    """Version 1 of the restarted run has other weights than version 1 of before."""

    async def test() -> None:
        first, second = queue_of(1, 1), queue_of(1, 1)
        stuck = asyncio.Event()
        begun: list[int] = []

        async def work(index: int) -> None:
            begun.append(index)
            if len(begun) == 2:
                await stuck.wait()

        parts, workflow = parts_of("policy", work=work, slots=1)
        stop = asyncio.Event()
        before, after = run_of(timeout_s=1), run_of(timeout_s=1)
        async with served(before, first) as (url, _):
            client_context = client_of(url)
            client = await client_context.__aenter__()
            working = asyncio.create_task(RolloutWorker(client, parts, stop).run())
            await first.next_batch()
            before.weights["policy"].publish(1, tensors(7))
            first.publish(1)
            first.learn(0)
            engine = workflow.engines["policy"]
            while engine.version != 1 or len(begun) < 2:
                await asyncio.sleep(0.01)
        async with served(after, second, port=httpx.URL(url).port or 0) as (_, service):
            assert [group.prompt_index for group in await second.next_batch()] == [0]
            assert holds(engine, 0)
            after.weights["policy"].publish(1, tensors(1))
            second.publish(1)
            second.learn(0)
            assert [group.prompt_index for group in await second.next_batch()] == [1]
            while not holds(engine, 1):
                await asyncio.sleep(0.01)
            assert service.workers == ["here:1"]
            stop.set()
            await working
        await client_context.__aexit__(None, None, None)

    play(test())


def test_an_error_of_the_workflow_is_tried_again_and_then_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dojang.rollout_service.worker._RETRY_S", 0.0)

    async def test() -> None:
        failures = {0: 2, 1: 15}

        async def work(index: int) -> None:
            failures[index] -= 1
            if failures[index] >= 0:
                raise KeyError(f"prompt {index}")

        queue = queue_of(1, 1)
        async with served(run_of(), queue) as (url, service), client_of(url) as client:
            for number in range(5):
                parts, workflow = parts_of("policy", work=work, slots=1, name=f"here:{number}")
                with pytest.raises(KeyError, match="prompt 1"):
                    await RolloutWorker(client, parts, asyncio.Event()).run()
                assert workflow.ran == [*([0, 0, 0] if number == 0 else []), 1, 1, 1]
            assert service.workers == []
            assert len(await queue_result(queue)) == 1

    async def queue_result(queue: RolloutQueue) -> Any:
        assert queue.ledger.counts()["ready"] == 1
        with pytest.raises(ClusterError, match=r"here:4: KeyError"):
            await queue.next_batch()
        return queue.ledger.ready_groups()

    play(test())


def test_a_worker_killed_in_the_middle_loses_no_prompt() -> None:
    async def test() -> None:
        queue = queue_of(2, 0, lease_s=0.5, steps=2)
        run = run_of(timeout_s=0.5)
        forever = asyncio.Event()

        async def hang(index: int) -> None:
            await forever.wait()

        async with served(run, queue) as (url, _), client_of(url) as client:
            parts, dead = parts_of("policy", work=hang)
            killed = asyncio.create_task(RolloutWorker(client, parts, asyncio.Event()).run())
            while len(dead.ran) < 2:
                await asyncio.sleep(0.01)
            async with client_of(url) as other:
                await client.close()
                client._http = httpx.AsyncClient(base_url="http://127.0.0.1:1")  # it cannot leave any more
                killed.cancel()
                await asyncio.gather(killed, return_exceptions=True)
                parts, alive = parts_of("policy", name="here:2")
                working = asyncio.create_task(RolloutWorker(other, parts, asyncio.Event()).run())
                assert await train(queue, run.weights, 2) == [[0, 1], [2, 3]]
                await working
        assert (dead.ran, set(alive.ran)) == ([0, 1], {0, 1, 2, 3})
        assert queue.metrics()["rollout_queue/expired"] >= 2

    play(test())
