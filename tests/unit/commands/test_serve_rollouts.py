"""`dojang serve rollouts`: its token, its signals, and what it says when it cannot join."""

import asyncio
import os
import signal
from typing import cast

import pytest
from typer.testing import CliRunner

from dojang.build.rollout_worker import BuiltWorker
from dojang.commands import app
from dojang.commands.serve_rollouts import serve, work
from dojang.core.errors import ClusterError, ConfigError, Interrupted
from dojang.protocols import Judge
from service_parts import TOKEN, parts_of, play, queue_of, run_of, served


def test_a_token_and_an_address_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOJANG_ROLLOUT_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="set DOJANG_ROLLOUT_TOKEN"):
        serve("http://127.0.0.1:1", [], timeout_s=0.1, alone=True)
    monkeypatch.setenv("DOJANG_ROLLOUT_TOKEN", TOKEN)
    with pytest.raises(ConfigError, match="must look like http://HOST:PORT"):
        serve("127.0.0.1:1", [], timeout_s=0.1, alone=True)
    with pytest.raises(ClusterError, match="did not answer"):
        serve("http://127.0.0.1:1", [], timeout_s=0.1, alone=True)
    assert "--join" in CliRunner().invoke(app, ["serve", "rollouts", "--help"]).output


class Closed:
    """A judge that knows that it was closed."""

    count = 0

    async def close(self) -> None:
        self.count += 1


@pytest.mark.parametrize("signals", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_drains_and_the_second_ends(number: signal.Signals, signals: int) -> None:
    async def test() -> None:
        queue = queue_of(2, 0)
        begun, proceed = asyncio.Event(), asyncio.Event()

        async def sample(index: int) -> None:
            begun.set()
            await proceed.wait()

        async with served(run_of(), queue) as (url, service):
            parts, workflow = parts_of("policy", work=sample, slots=1)
            judge = Closed()
            working = asyncio.create_task(work(BuiltWorker(parts, cast(Judge, judge)), url, TOKEN, 10.0))
            await begun.wait()
            for _ in range(signals):
                os.kill(os.getpid(), number)
                await asyncio.sleep(0.1)
            if signals == 1:
                assert not working.done()
                proceed.set()
                await working
            else:
                with pytest.raises(Interrupted):
                    await working
            assert queue.ledger.counts()["ready"] == (signals == 1)
            assert workflow.ran == [0]
            assert judge.count == 1
            assert all(engine.closed for engine in workflow.engines.values())
            assert service.workers == []
            lease = await queue.lease("other", 0)  # nothing is held any more
            assert lease is not None
            assert lease.attempt == (signals == 2)

    play(test())
