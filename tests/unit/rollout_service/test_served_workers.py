"""The RolloutWorkers of other processes: worker processes that join, fail and end with the run."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from dojang.core.errors import ClusterError, ConfigError
from dojang.core.http_service import open_listener
from dojang.rollout_service.served_workers import ServedWorkers
from dojang.rollout_service.worker import RolloutWorker, worker_name
from dojang.rollout_service.worker_process import LocalProcesses
from service_parts import client_of, parts_of, play, queue_of, run_of, tensors, train

NOTHING = LocalProcesses(lambda url: [])


def processes(tmp_path: Path, script: str, count: int = 1) -> LocalProcesses:
    def command(url: str) -> Sequence[str]:
        return [sys.executable, "-c", script, url]

    return LocalProcesses(command, [{} for _ in range(count)], lambda number: tmp_path / f"{number}.log")


def test_workers_join_once_the_run_begins_and_leave_when_it_ends() -> None:
    async def test() -> None:
        run, queue, urls = run_of(), queue_of(2, 1, steps=3), list[str]()
        served = ServedWorkers(run, "127.0.0.1", 0, NOTHING, urls.append)
        assert await served.publish(0) == {"rollout_service/workers": 0.0, "rollout_service/sent_bytes": 0.0}
        async with client_of(urls[0]) as client:
            parts, workflow = parts_of("policy")
            working = asyncio.create_task(RolloutWorker(client, parts, asyncio.Event()).run())
            await asyncio.sleep(0.1)
            assert workflow.ran == []
            await served.start(queue)
            await train(queue, run.weights, 3)
            await working
            figures = await served.publish(3)
            assert figures["rollout_service/sent_bytes"] > 80_000
            with pytest.raises(LookupError, match="version 9 of policy"):
                await served.publish(9)
            queue.close()
            await served.close()

    play(test())


def test_both_policies_must_have_published() -> None:
    async def test() -> None:
        run = run_of("coder", "tester")
        run.weights["coder"].publish(1, tensors(1))
        served = ServedWorkers(run, "127.0.0.1", 0, NOTHING)
        with pytest.raises(LookupError, match="version 1 of tester"):
            await served.publish(1)
        run.weights["tester"].publish(1, tensors(1))
        await served.publish(1)
        await served.close()

    play(test())


def test_the_run_fails_if_worker_processes_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dojang.rollout_service.worker_process._DELAY_S", 0.0)

    async def test() -> None:
        queue = queue_of()
        script = "import os, sys; assert os.environ['DOJANG_ROLLOUT_TOKEN'] == 'secret'; sys.exit('no such model')"
        served = ServedWorkers(run_of(), "127.0.0.1", 0, processes(tmp_path, script))
        await served.publish(0)
        await asyncio.sleep(0.3)
        await served.start(queue)
        with pytest.raises(ClusterError, match=r"(?s)5 rollout workers failed .*exit code 1.*no such model"):
            await queue.next_batch()
        queue.close()
        await served.close()

    play(test())


def test_the_prompts_of_a_dead_process_are_returned_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        run, queue, urls = run_of(), queue_of(1, 0), list[str]()
        sleeping = processes(tmp_path, "import time; time.sleep(600)")
        served = ServedWorkers(run, "127.0.0.1", 0, sleeping, urls.append)
        await served.start(queue)
        (pid,) = sleeping.pids
        async with client_of(urls[0]) as client:
            parts, _ = parts_of("policy", name=worker_name(pid))
            dead, other = await client.join(parts.join), await client.join(parts_of("policy")[0].join)
            await client.lease(dead.worker)
            waiting = asyncio.create_task(client.lease(other.worker))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            os.kill(pid, signal.SIGKILL)
            lease, _ = await waiting
            assert lease is not None
            assert (lease.prompt_index, lease.attempt) == (0, 1)
            await client.leave(other.worker)
        queue.close()
        await served.close()
        assert sleeping.pids == []

    play(test())


def test_a_port_in_use_is_reported() -> None:
    async def test() -> None:
        with open_listener("127.0.0.1", 0) as listener:
            served = ServedWorkers(run_of(), "127.0.0.1", listener.getsockname()[1], NOTHING)
            with pytest.raises(ConfigError, match="cannot listen"):
                await served.publish(0)
            await served.close()

    play(test())
