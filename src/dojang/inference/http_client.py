"""A server that is asked over HTTP, and may fail.

A request whose connection fails is asked again while the server is alive, or when it comes back within some time; after
that it is dead, which is a RuntimeError. Only what may be asked twice is: drawing a sample gives the same again.
Proxies named in the environment are not used: rollout servers are neighbours.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from dojang.core.errors import ConfigError
from dojang.core.keepalive import KEEPALIVE

__all__ = ["Patience", "Refused", "Server"]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for what."""

    answer_s: float = 1800.0
    """For one answer: the longest sample, with all that it waits for in the server's queue, must fit."""
    health_s: float = 5.0
    """For an answer that needs no work, and for a connection."""
    recovery_s: float = 60.0
    """For a server that does not answer to come back."""
    retries: int = 5
    """How often to ask again after a connection that failed."""
    first_delay_s: float = 0.2
    """Before the server is looked for again; doubled each time, up to 5 s."""


class Refused(ValueError):
    """The server understood, and will not do it."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class Server:
    """Connections to one server, for one event loop. Each is a client of its own: httpx's pool takes time that grows
    with the square of the number of its connections."""

    def __init__(self, url: str, token: str | None, patience: Patience, connections: int) -> None:
        parsed = httpx.URL(url)
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ConfigError(f"server URL {url!r} must look like http://host:port")
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._patience = patience
        self.room = asyncio.Semaphore(connections)
        """For requests that take long. Others must get through when all of them wait."""
        self._free: list[httpx.AsyncClient] = []
        self._verify = httpx.create_ssl_context() if parsed.scheme == "https" else False

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, again: bool = False) -> Any:
        """The answer, as JSON has it. `again`: whether it may be asked twice."""
        tries = self._patience.retries if again else 0
        while True:
            try:
                async with self._line() as client:
                    response = await client.request(method, path, json=body)
            except httpx.ReadTimeout as error:
                raise RuntimeError(f"{self.url}{path} has not answered within {self._patience.answer_s:g} s") from error
            except httpx.TransportError as error:
                await self._recover(path, error)
                if not tries:
                    raise RuntimeError(f"{self.url}{path} failed, and was not asked again: {_words(error)}") from error
                tries -= 1
                continue
            if response.is_success:
                return response.json() if response.content else None
            if response.status_code == 503 and tries and await self._alive():  # its queue is full
                tries -= 1
                await asyncio.sleep(self._patience.health_s)
                continue
            words = f"{self.url}{path} says {response.status_code}: {_reason(response)}"
            if response.status_code >= 500:
                raise RuntimeError(words)
            raise Refused(response.status_code, words)

    async def check(self) -> None:
        """RuntimeError if it is not well."""
        if not await self._alive():
            raise RuntimeError(f"the server at {self.url} is not alive: its /health says nothing good")

    async def close(self) -> None:
        for client in self._free:
            await client.aclose()
        self._free.clear()

    async def _recover(self, path: str, error: Exception) -> None:
        """Until it is alive; RuntimeError if that takes too long."""
        loop = asyncio.get_running_loop()
        deadline, delay = loop.time() + self._patience.recovery_s, self._patience.first_delay_s
        while not await self._alive():
            if loop.time() + delay > deadline:
                raise RuntimeError(
                    f"the server at {self.url} is dead: {path} failed ({_words(error)}), and its /health has said "
                    f"nothing good for {self._patience.recovery_s:g} s; see its log, and start it again"
                ) from error
            await asyncio.sleep(delay)
            delay = min(2 * delay, 5.0)

    async def _alive(self) -> bool:
        try:
            async with self._line() as client:
                return (await client.get("/health", timeout=self._patience.health_s)).is_success
        except httpx.TransportError:
            return False

    @asynccontextmanager
    async def _line(self) -> AsyncIterator[httpx.AsyncClient]:
        client = self._free.pop() if self._free else self._client()
        try:
            yield client
        except BaseException:
            await client.aclose()  # nobody knows what still comes on it
            raise
        self._free.append(client)

    def _client(self) -> httpx.AsyncClient:
        transport = httpx.AsyncHTTPTransport(
            verify=self._verify, limits=httpx.Limits(max_connections=1), socket_options=KEEPALIVE
        )
        timeout = httpx.Timeout(self._patience.answer_s, connect=self._patience.health_s)
        return httpx.AsyncClient(base_url=self.url, headers=self._headers, timeout=timeout, transport=transport)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _reason(response: httpx.Response) -> str:
    try:
        error = response.json()["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return response.text[:300] or response.reason_phrase
