"""Asking a server that may fail; a few lines of HTTP are enough of one."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from dojang.core.errors import ConfigError
from dojang.inference.http_client import RequestRejected, Server, Timeouts

HASTY = Timeouts(answer_s=0.5, health_s=0.5, recovery_s=0.5, retries=3, first_delay_s=0.05)
Answer = Callable[[str], Awaitable[tuple[int, str] | None]]


@asynccontextmanager
async def serving(answer: Answer, timeouts: Timeouts = HASTY) -> AsyncIterator[Server]:
    """A server that answers (status, body), or closes the connection on None."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := (await reader.readline()).decode():
                while (await reader.readline()).strip():
                    pass
                if (said := await answer(line.split()[1])) is None:
                    break
                status, body = said
                writer.write(f"HTTP/1.1 {status} x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
                await writer.drain()
        finally:
            writer.close()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0)
    server = Server(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", None, timeouts, connections=4)
    try:
        yield server
    finally:
        await server.close()
        listening.close()
        await listening.wait_closed()


def failing(times: int, asked: list[str]) -> Answer:
    async def answer(path: str) -> tuple[int, str] | None:
        if path == "/health":
            return 200, ""
        asked.append(path)
        return (200, '{"ok": 1}') if len(asked) > times else None

    return answer


async def _ask(answer: Answer, again: bool) -> object:
    async with serving(answer) as server:
        return await server.ask("GET", "/x", again=again)


def test_a_connection_that_fails_is_tried_again() -> None:
    asked: list[str] = []
    assert asyncio.run(_ask(failing(3, asked), True)) == {"ok": 1}
    assert len(asked) == 4


def test_but_not_for_ever() -> None:
    asked: list[str] = []
    with pytest.raises(RuntimeError, match="/x failed and is not sent again"):
        asyncio.run(_ask(failing(99, asked), True))
    assert len(asked) == 4


def test_a_request_that_is_not_idempotent_is_not_sent_again() -> None:
    asked: list[str] = []
    with pytest.raises(RuntimeError, match="/x failed and is not sent again"):
        asyncio.run(_ask(failing(99, asked), False))
    assert len(asked) == 1


def test_a_server_that_comes_back_in_time_is_asked_again() -> None:
    health, asked = [503, 503, 200], list[str]()

    async def answer(path: str) -> tuple[int, str] | None:
        if path == "/health":
            return health.pop(0), ""
        asked.append(path)
        return (200, "[]") if len(asked) > 1 else None

    assert asyncio.run(_ask(answer, True)) == []
    assert not health


def test_a_dead_server_is_an_error_in_bounded_time() -> None:
    async def dead() -> float:
        async with serving(failing(0, [])) as server:
            pass
        started = asyncio.get_running_loop().time()
        with pytest.raises(RuntimeError, match="is dead: /x failed"):
            await server.ask("GET", "/x", again=True)
        with pytest.raises(RuntimeError, match="health check failed"):
            await server.check()
        return asyncio.get_running_loop().time() - started

    assert asyncio.run(dead()) < 3


def test_an_answer_that_does_not_come_is_an_error() -> None:
    async def answer(path: str) -> tuple[int, str] | None:
        await asyncio.sleep(30 if path == "/x" else 0)
        return 200, ""

    async def late() -> None:
        async with serving(answer) as server:
            with pytest.raises(RuntimeError, match=r"did not answer within 0\.5 s"):
                await server.ask("GET", "/x", again=True)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    asyncio.run(asyncio.wait_for(late(), 10))


@pytest.mark.parametrize(
    ("status", "error"), [(400, RequestRejected), (404, RequestRejected), (500, RuntimeError), (503, RuntimeError)]
)
def test_error_messages_of_the_server_are_passed_on(status: int, error: type[Exception]) -> None:
    async def answer(path: str) -> tuple[int, str] | None:
        return status, '{"error": {"message": "no such luck"}}'

    with pytest.raises(error, match=f"returned {status}: no such luck"):
        asyncio.run(_ask(answer, True))


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://"])
def test_a_url_must_be_one(url: str) -> None:
    with pytest.raises(ConfigError, match="must look like"):
        Server(url, None, HASTY, 1)
