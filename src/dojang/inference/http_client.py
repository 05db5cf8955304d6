"""HTTP client for one server, with timeouts, retries and a health check.

A request whose connection fails is sent again while the server is healthy, or when it recovers in time; otherwise it
raises ServerError. Only idempotent requests are sent again: sampling with a seed gives the same tokens. Proxies of the
environment are not used: rollout servers are in the same network.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from dojang.core.errors import ClusterError, ConfigError
from dojang.core.keepalive import KEEPALIVE

__all__ = ["RequestRejected", "Server", "ServerError", "Timeouts"]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts and retries of a server."""

    answer_s: float = 1800.0
    """Seconds for one response, including the server's queue and the longest sample."""
    health_s: float = 5.0
    """Seconds for a health check and for connecting."""
    recovery_s: float = 60.0
    """Seconds for an unreachable server to recover."""
    retries: int = 5
    """Retries after a failed connection."""
    first_delay_s: float = 0.2
    """Seconds before the first health check after a failure; doubled each time, up to 5 s."""


class ServerError(ClusterError, RuntimeError):
    """The server cannot be reached, does not answer, or failed (5xx)."""


class RequestRejected(ValueError):
    """The server rejected the request (4xx)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Server:
    """Connections to one server, for one event loop. Each has its own httpx client: httpx's pool takes time
    quadratic in the number of its connections."""

    def __init__(self, url: str, token: str | None, timeouts: Timeouts, connections: int) -> None:
        parsed = httpx.URL(url)
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ConfigError(f"server URL {url!r} must look like http://host:port")
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeouts = timeouts
        self.long_requests = asyncio.Semaphore(connections)
        """Limits long requests; short ones (a weight update's) must get through while all of these wait."""
        self._free: list[httpx.AsyncClient] = []
        self._verify = httpx.create_ssl_context() if parsed.scheme == "https" else False

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, again: bool = False) -> Any:
        """Send a request and return the JSON response. `again`: it may be sent twice."""
        tries = self._timeouts.retries if again else 0
        while True:
            try:
                async with self._connection() as client:
                    response = await client.request(method, path, json=body)
            except httpx.ReadTimeout as error:
                raise ServerError(f"{self.url}{path} did not answer within {self._timeouts.answer_s:g} s") from error
            except httpx.TransportError as error:
                await self._recover(path, error)
                if not tries:
                    raise ServerError(f"{self.url}{path} failed and is not sent again: {_describe(error)}") from error
                tries -= 1
                continue
            if response.is_success:
                return response.json() if response.content else None
            if response.status_code == 503 and tries and await self._alive():  # its queue is full
                tries -= 1
                await asyncio.sleep(self._timeouts.health_s)
                continue
            message = f"{self.url}{path} returned {response.status_code}: {_reason(response)}"
            if response.status_code >= 500:
                raise ServerError(message)
            raise RequestRejected(response.status_code, message)

    async def check(self) -> None:
        """Raise ServerError if the health check fails."""
        if not await self._alive():
            raise ServerError(f"health check failed: GET {self.url}/health")

    async def close(self) -> None:
        for client in self._free:
            await client.aclose()
        self._free.clear()

    async def _recover(self, path: str, error: Exception) -> None:
        """Wait until the health check passes; ServerError if that takes too long."""
        loop = asyncio.get_running_loop()
        deadline, delay = loop.time() + self._timeouts.recovery_s, self._timeouts.first_delay_s
        while not await self._alive():
            if loop.time() + delay > deadline:
                raise ServerError(
                    f"the server at {self.url} is dead: {path} failed ({_describe(error)}), and its health check "
                    f"failed for {self._timeouts.recovery_s:g} s; see its log and restart it"
                ) from error
            await asyncio.sleep(delay)
            delay = min(2 * delay, 5.0)

    async def _alive(self) -> bool:
        try:
            async with self._connection() as client:
                return (await client.get("/health", timeout=self._timeouts.health_s)).is_success
        except httpx.TransportError:
            return False

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[httpx.AsyncClient]:
        client = self._free.pop() if self._free else self._client()
        try:
            yield client
        except BaseException:
            await client.aclose()  # a late response may still arrive on it
            raise
        self._free.append(client)

    def _client(self) -> httpx.AsyncClient:
        transport = httpx.AsyncHTTPTransport(
            verify=self._verify, limits=httpx.Limits(max_connections=1), socket_options=KEEPALIVE
        )
        timeout = httpx.Timeout(self._timeouts.answer_s, connect=self._timeouts.health_s)
        return httpx.AsyncClient(base_url=self.url, headers=self._headers, timeout=timeout, transport=transport)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _reason(response: httpx.Response) -> str:
    try:
        error = response.json()["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return response.text[:300] or response.reason_phrase
