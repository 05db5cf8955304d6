"""`dojang serve rollouts`: its token, its signals, and what it says when it cannot join."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import cast

import pytest
from typer.testing import CliRunner

from dojang.build.rollout_worker import BuiltWorker
from dojang.commands import app
from dojang.commands.serve_rollouts import serve, work
from dojang.core.errors import ClusterError, ConfigError, Interrupted
from dojang.protocols import Judge
from service_parts import TOKEN, client_of, parts_of, play, queue_of, run_of, served


def test_a_token_and_an_address_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOJANG_ROLLOUT_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="set DOJANG_ROLLOUT_TOKEN"):
        serve("http://127.0.0.1:1", [], timeout_s=0.1, alone=True)
    monkeypatch.setenv("DOJANG_ROLLOUT_TOKEN", TOKEN)
    for url in (
        "127.0.0.1:1",
        "http://",
        "http://a:b",
        "http://[::1",
        "http://a:70000",
        "http://a:1/?b=c",
        "ftp://a:1",
    ):
        with pytest.raises(ConfigError, match="must look like http://HOST:PORT"):
            serve(url, [], timeout_s=0.1, alone=True)
    with pytest.raises(ConfigError, match="must look like http://HOST:PORT"):
        serve(f"http://{'a' * 70}:1", [], timeout_s=0.1, alone=True)
    with pytest.raises(ClusterError, match="did not answer"):
        serve("http://127.0.0.1:1", [], timeout_s=0.1, alone=True)
    for token in ("sécret", "two words", "line\n"):
        monkeypatch.setenv("DOJANG_ROLLOUT_TOKEN", token)
        with pytest.raises(ConfigError, match="DOJANG_ROLLOUT_TOKEN must have printable ASCII characters"):
            serve("http://127.0.0.1:1", [], timeout_s=0.1, alone=True)
    assert "--join" in CliRunner().invoke(app, ["serve", "rollouts", "--help"]).output


def test_a_setting_that_a_worker_may_not_change_is_refused_before_anything_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DOJANG_ROLLOUT_TOKEN", raising=False)
    with pytest.raises(ConfigError, match=r"train.lr=1: a worker has the settings of its run; it may change only data"):
        serve("http://127.0.0.1:1", ["judge.workers=1", "train.lr=1"], timeout_s=600, alone=True)


@asynccontextmanager
async def listening(answer: bytes) -> AsyncIterator[str]:
    """Another server, that answers every connection with these bytes; with none it never answers."""

    ended = list[asyncio.Future[None]]()

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended.append(done := asyncio.get_running_loop().create_future())
        writer.write(answer)
        if not answer:
            await reader.read()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        done.set_result(None)

    async with await asyncio.start_server(reply, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.gather(*ended)


def page(status: str, body: bytes, header: str = "Content-Type: text/html") -> bytes:
    return f"HTTP/1.1 {status}\r\n{header}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    ("answer", "scheme", "said"),
    [
        (page("404 Not Found", b"<html>no</html>"), "http", r"/run returned 404; give the address"),
        (page("401 Unauthorized", b"who?"), "http", r"/run returned 401; give the address"),
        (page("302 Found", b"", "Location: /login"), "http", r"/run returned 302; give the address"),
        (page("404 Not Found", b'{"detail": "Not Found"}'), "http", r"/run returned 404; give the address"),
        (page("200 OK", b"<html>hello</html>"), "http", r"returned no RunDescription: Invalid JSON"),
        (page("200 OK", b'{"dojang": "1.0"}'), "http", r"returned no RunDescription: config: Field required"),
        (page("200 OK", b"hello", "Content-Encoding: gzip"), "http", "does not speak HTTP"),
        (b"220 mail.example.com ESMTP\r\n\r\n", "http", "does not speak HTTP"),
        (b"220 mail.example.com ESMTP\r\n\r\n", "https", "TLS failed"),
    ],
)
def test_another_server_at_the_address_is_reported_at_once(answer: bytes, scheme: str, said: str) -> None:
    async def test() -> None:
        async with listening(answer) as address, client_of(f"{scheme}://{address}") as client:
            with pytest.raises(ConfigError, match=f"no rollout service .*{said}") as caught:
                await client.describe()
            assert "\n" not in str(caught.value)
            assert address in str(caught.value)

    play(test())


def test_a_server_that_never_answers_is_given_up_in_time() -> None:
    async def test() -> None:
        async with listening(b"") as address, client_of(f"http://{address}", timeout_s=0.1) as client:
            with pytest.raises(ClusterError, match=r"did not answer for 0\.1 s \(ReadTimeout\)"):
                async with asyncio.timeout(10):
                    await client.describe()

    play(test())


def test_an_unknown_path_of_the_run_is_reported() -> None:
    async def test() -> None:
        async with served(run_of(), queue_of()) as (url, _), client_of(f"{url}/some/where/") as client:
            with pytest.raises(
                ConfigError, match=r"no rollout service .*/some/where/run returned 404; give the address"
            ):
                await client.describe()

    play(test())


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
