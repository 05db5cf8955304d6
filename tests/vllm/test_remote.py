"""What can go wrong between an engine and its server, with real servers."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import httpx
import pytest

from dojang.core.errors import ConfigError
from dojang.inference.http_client import Timeouts
from dojang.inference.remote import RemoteEngine
from dojang.inference.vllm_base import ModelInfo
from dojang.types import Completion, Sampling
from vllm_servers import NEEDS_VLLM, Served

pytestmark = [*NEEDS_VLLM, pytest.mark.slow]

T = TypeVar("T")
WARM = Sampling(temperature=1.0, max_tokens=12, seed=3)
LONG = Sampling(temperature=2.0, max_tokens=1500, seed=3, bias=((1, -100.0),))
PROMPT = tuple(range(10, 22))
HASTY = Timeouts(health_s=2.0, recovery_s=3.0, retries=2)


def run(engine: RemoteEngine, play: Callable[[RemoteEngine], Awaitable[T]]) -> T:
    async def whole() -> T:
        try:
            return await asyncio.wait_for(play(engine), 120)
        finally:
            await engine.close()

    return asyncio.run(whole())


def test_openai_completions_give_the_same_samples(kit: Served) -> None:
    async def both(engine: RemoteEngine) -> tuple[list[Completion], list[Completion]]:
        await engine.load(0)
        stop = replace(WARM, stop=("the answer",), bias=((40, 3.0),), top_k=20, top_p=0.9)
        native = await engine.generate(PROMPT, 3, WARM) + await engine.generate(PROMPT, 3, stop)
        other = kit.remote(api="openai")
        try:
            return native, await other.generate(PROMPT, 3, WARM) + await other.generate(PROMPT, 3, stop)
        finally:
            await other.close()

    native, openai = run(kit.remote(), both)
    for one, other in zip(native, openai, strict=True):
        assert one.tokens == other.tokens
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        assert (one.text, one.finish) == (other.text, other.finish)


def test_an_openai_server_can_do_nothing_but_draw(kit: Served) -> None:
    async def manage(engine: RemoteEngine) -> None:
        for verb in (engine.load, engine.begin):
            with pytest.raises(NotImplementedError):
                await verb(7)
        assert len(await engine.generate(PROMPT, 1, WARM)) == 1
        assert (await engine.state()).running == 0

    run(kit.remote(api="openai"), manage)


def test_log_probs_of_another_distribution_are_refused(kit: Served) -> None:
    engine = RemoteEngine(kit.plain_server().url, kit.tokenizer, None, api="openai")
    with pytest.raises(ConfigError, match="--logprobs-mode processed_logprobs"):
        run(engine, lambda engine: engine.generate(PROMPT, 1, WARM))


def test_a_server_without_the_routes_is_refused(kit: Served) -> None:
    engine = RemoteEngine(kit.plain_server().url, kit.tokenizer, kit.weights)
    with pytest.raises(ConfigError, match="VLLM_SERVER_DEV_MODE=1"):
        run(engine, lambda engine: engine.generate(PROMPT, 1, WARM))


def test_a_server_left_paused_or_in_an_update_is_taken_over(kit: Served) -> None:
    httpx.post(f"{kit.server().url}/pause?mode=keep").raise_for_status()
    httpx.post(f"{kit.server().url}/update_weight_version", json={"new_version": "broken"}).raise_for_status()

    async def take_over(engine: RemoteEngine) -> list[Completion]:
        with pytest.raises(RuntimeError, match="was started and never finished"):
            await engine.generate(PROMPT, 1, WARM)
        assert (await engine.state()).dirty
        await engine.load(3)
        return await engine.generate(PROMPT, 1, WARM)

    assert [each.version for each in run(kit.remote(), take_over)] == [3]


def test_a_server_that_was_restarted_is_noticed(kit: Served) -> None:
    async def restart(engine: RemoteEngine) -> list[Completion]:
        await engine.load(3)
        label = {"new_version": "default"}  # as it would be then
        httpx.post(f"{kit.server().url}/update_weight_version", json=label).raise_for_status()
        for _ in range(2):
            with pytest.raises(RuntimeError, match="vLLM was restarted"):
                await engine.generate(PROMPT, 1, WARM)
        await engine.load(3)
        return await engine.generate(PROMPT, 1, WARM)

    assert [each.version for each in run(kit.remote(), restart)] == [3]


def test_an_update_gets_through_when_all_connections_are_taken(kit: Served) -> None:
    async def crowd(engine: RemoteEngine) -> None:
        await engine.load(0)
        asked = asyncio.create_task(engine.generate(PROMPT, 6, LONG))
        await asyncio.sleep(0.5)
        await asyncio.wait_for(engine.load(7), 30)
        assert not asked.done()
        asked.cancel()

    run(kit.remote(connections=2), crowd)


def test_an_engine_that_is_closed_fails_what_is_under_way(kit: Served) -> None:
    async def close_early(engine: RemoteEngine) -> list[object]:
        await engine.load(0)
        asked = [asyncio.create_task(engine.generate(PROMPT, 2, replace(LONG, prompt_index=at))) for at in range(3)]
        while (await engine.state()).running < 6:
            await asyncio.sleep(0.01)
        folder = engine._weight_files._folder
        assert folder is not None
        await asyncio.wait_for(engine.close(), 10)
        assert not folder.exists()
        with pytest.raises(RuntimeError, match="the engine is closed"):
            await engine.generate(PROMPT, 1, WARM)
        return await asyncio.gather(*asked, return_exceptions=True)

    assert [type(each) for each in run(kit.remote(), close_early)] == [asyncio.CancelledError] * 3


def test_a_server_killed_under_a_request_is_an_error_in_bounded_time(kit: Served) -> None:
    server = kit.plain_server()
    engine = RemoteEngine(server.url, kit.tokenizer, None, api="openai", timeouts=HASTY)

    async def kill(engine: RemoteEngine) -> float:
        engine._connection._facts = ModelInfo(2048, None, 0)  # type: ignore[attr-defined]  # its log-probs are not the point
        engine._connection._model = "plain"  # type: ignore[attr-defined]
        asked = asyncio.create_task(engine.generate(PROMPT, 2, LONG))
        await asyncio.sleep(1.0)
        assert not asked.done()
        server.kill()
        started = asyncio.get_running_loop().time()
        with pytest.raises(RuntimeError, match="is dead: /v1/completions failed"):
            await asked
        with pytest.raises(RuntimeError, match="health check failed"):
            await engine.state()
        with pytest.raises(RuntimeError, match="is dead"):
            await engine.generate(PROMPT, 1, WARM)
        return asyncio.get_running_loop().time() - started

    assert run(engine, kill) < 4 * HASTY.recovery_s
