"""Requests of a rollout worker to the trainer's process. A request that fails is sent again, with growing delays, until
the run has not answered for a given time."""

import asyncio
import hashlib
import json
import logging
import random
from collections.abc import Awaitable, Callable
from http.client import HTTPException
from typing import Literal, TypeVar
from urllib.parse import quote, urlencode

import httpx
from pydantic import BaseModel

from dojang.core.errors import ClusterError, ConfigError
from dojang.core.keepalive import KEEPALIVE
from dojang.rollout_service.download import Download, ErrorReply
from dojang.rollout_service.messages import (
    DeliverReply,
    HeartbeatReply,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    LeaseMessage,
    LeaseReply,
    LeaseRequest,
    LeaveRequest,
    MessageError,
    RunDescription,
    parse,
)

__all__ = ["TOKEN_VARIABLE", "NotJoined", "ServiceClient", "VersionGone", "check_token"]

logger = logging.getLogger(__name__)
T = TypeVar("T")
M = TypeVar("M", RunDescription, JoinReply, LeaseReply, HeartbeatReply, DeliverReply)

TOKEN_VARIABLE = "DOJANG_ROLLOUT_TOKEN"
_ANSWER_S = 120.0
"""Seconds for the next bytes of an answer. A server that is alive answers a waiting request within a quarter of
loop.worker_timeout_s."""
_CONNECT_S = 10.0
_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 2.0
_AGAIN = ("damaged", "too_slow")
"""Refusals after which the same request may succeed."""
_PRINTED = "as `dojang train --print-join` prints it"


class NotJoined(Exception):
    """The service does not know this worker: it has to join again, and to start anew."""


class VersionGone(Exception):
    """The service does not hold these weights any more."""


class _Failed(Exception):
    """The request may succeed when it is sent again."""


class _Starting(_Failed):
    """The run has not begun."""


class ServiceClient:
    """Connections to one run, for one event loop."""

    def __init__(self, url: str, token: str, *, timeout_s: float) -> None:
        """`timeout_s`: seconds without an answer after which the run is given up."""
        scheme = _check_address(url)
        check_token(token)
        self.url, self._token, self._timeout_s = url.rstrip("/"), token, timeout_s
        transport = httpx.AsyncHTTPTransport(
            verify=httpx.create_ssl_context() if scheme == "https" else False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=16),
            socket_options=KEEPALIVE,
        )
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"},
            transport=transport,
        )

    async def describe(self) -> RunDescription:
        """Returns the settings of the run. ConfigError if something else listens at its address."""
        return await self._again(lambda: self._ask(RunDescription, "GET", "/run", limit_s=max(1.0, self._timeout_s)))

    async def join(self, message: JoinRequest) -> JoinReply:
        """Joins the run. ConfigError if the worker does not fit it."""
        return await self._post(JoinReply, "/join", message)

    async def lease(self, worker: str) -> tuple[LeaseMessage | None, bool]:
        """Waits for a prompt. Returns it, if any, and whether the run has ended."""
        reply = await self._post(LeaseReply, "/lease", LeaseRequest(worker=worker))
        return reply.lease, reply.ended

    async def heartbeat(self, worker: str, prompts: list[int], version: int) -> HeartbeatReply:
        """Renews leases; waits for another version of the weights."""
        return await self._post(
            HeartbeatReply, "/heartbeat", HeartbeatRequest(worker=worker, prompts=prompts, version=version)
        )

    async def deliver(self, worker: str, lease: LeaseMessage, group: bytes) -> Literal["taken", "known", "late"]:
        """Delivers an encoded group. It may be sent twice: the first delivery wins."""
        query = {
            "worker": worker,
            "prompt_index": str(lease.prompt_index),
            "attempt": str(lease.attempt),
            "digest": hashlib.blake2b(group, digest_size=16).hexdigest(),
        }
        reply = await self._again(lambda: self._ask(DeliverReply, "POST", "/deliver", content=group, params=query))
        return reply.answer

    async def leave(self, worker: str, error: str = "") -> None:
        """Leaves the run; tries once, as leases expire anyway."""
        message = LeaveRequest(worker=worker, error=error[-5000:])
        await self._http.post("/leave", content=message.model_dump_json(), timeout=_CONNECT_S)

    async def weights(self, policy: str, version: int, base: int | None, merge: bool) -> bytearray:
        """Fetches a weight pack; goes on where a cut connection ended. VersionGone if it is not held any more."""
        query = urlencode({"merge": int(merge)} | ({} if base is None else {"base": base}))
        url = f"{self.url}/weights/{quote(policy)}/{version}"
        download = Download(f"{url}?{query}", self._token, _ANSWER_S)

        async def fetch() -> bytearray:
            try:
                return await asyncio.to_thread(download.fetch)
            except ErrorReply as error:
                raise _refusal(error.status, url, error.content) from None
            except (OSError, HTTPException) as error:
                raise _Failed(f"{url}: {_describe(error)}") from error
            except asyncio.CancelledError:
                download.cancel()
                raise

        return await self._again(fetch, lambda: download.size)

    async def close(self) -> None:
        await self._http.aclose()

    async def _post(self, kind: type[M], path: str, message: BaseModel) -> M:
        return await self._again(lambda: self._ask(kind, "POST", path, content=message.model_dump_json().encode()))

    async def _ask(
        self,
        kind: type[M],
        method: str,
        path: str,
        content: bytes | None = None,
        params: dict[str, str] | None = None,
        limit_s: float = _ANSWER_S,
    ) -> M:
        timeout = httpx.Timeout(min(limit_s, _ANSWER_S), connect=min(limit_s, _CONNECT_S))
        try:
            response = await self._http.request(method, path, content=content, params=params, timeout=timeout)
        except (httpx.TransportError, httpx.DecodingError) as error:
            if reason := _wrong_server(error):
                raise ConfigError(f"no rollout service at {self.url}: {reason}; give the address {_PRINTED}") from None
            raise
        if not response.is_success:
            raise _refusal(response.status_code, f"{self.url}{path}", response.content)
        try:
            return parse(kind, response.content)
        except MessageError as error:
            raise ConfigError(
                f"no rollout service of this version of dojang at {self.url}: {path} returned {error}; give the "
                f"address {_PRINTED}"
            ) from None

    async def _again(self, send: Callable[[], Awaitable[T]], progress: Callable[[], int] = lambda: 0) -> T:
        """Sends until it succeeds; ClusterError when `timeout_s` has passed without progress."""
        loop = asyncio.get_running_loop()
        deadline, delay, before = loop.time() + self._timeout_s, _FIRST_DELAY_S, progress()
        while True:
            try:
                return await send()
            except (httpx.TransportError, _Failed) as error:
                if progress() > before or isinstance(error, _Starting):
                    deadline, delay, before = loop.time() + self._timeout_s, _FIRST_DELAY_S, progress()
                if loop.time() > deadline:
                    raise ClusterError(
                        f"the run at {self.url} did not answer for {self._timeout_s:g} s ({_describe(error)}); see "
                        "whether it trains, at this address, and start the worker again"
                    ) from error
                if delay == _FIRST_DELAY_S and not isinstance(error, _Starting):
                    logger.warning("%s: %s; trying again", self.url, _describe(error))
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(2 * delay, _LONGEST_DELAY_S)


def _check_address(url: str) -> str:
    """Returns the scheme of a URL. ConfigError if it is no address of a run."""
    try:
        parsed = httpx.URL(url)
        parsed.host.encode("idna")
    except (httpx.InvalidURL, UnicodeError):
        parsed = httpx.URL("")
    whole = parsed.host and not (parsed.query or parsed.fragment) and (parsed.port or 0) < 2**16
    if parsed.scheme not in ("http", "https") or not whole:
        raise ConfigError(f"--join={url} must look like http://HOST:PORT, {_PRINTED}")
    return parsed.scheme


def check_token(token: str) -> None:
    """Raises ConfigError if a token cannot be sent in a header."""
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise ConfigError(f"{TOKEN_VARIABLE} must have printable ASCII characters without spaces only")


def _wrong_server(error: Exception) -> str:
    """Says why there is another server at the address; "" if the request may succeed when it is sent again."""
    if isinstance(error, httpx.DecodingError) or "illegal status line" in str(error):
        return f"what listens there does not speak HTTP ({error})"
    return f"TLS failed ({error})" if "[SSL" in str(error) else ""


def _refusal(status: int, url: str, content: bytes) -> Exception:
    """Exception for an error reply."""
    try:
        reply = json.loads(content)
        code, detail = str(reply["error"]), str(reply["detail"])
    except (ValueError, KeyError, TypeError):
        code, detail = "", content[:300].decode(errors="replace")
    message = f"{url} returned {status}: {detail}"
    if code == "unauthorized":
        return ConfigError(
            f"{url} refused the token: set {TOKEN_VARIABLE} to the one that `dojang train --print-join` printed"
        )
    if code == "unknown_worker":
        return NotJoined(detail)
    if code == "unknown_weights":
        return VersionGone(detail)
    if code == "starting":
        return _Starting(message)
    if status >= 500 or code in _AGAIN:
        return _Failed(message)
    if code in ("wrong_version", "wrong_run", "wrong_data"):
        return ConfigError(detail)
    if code in ("", "not_found", "method_not_allowed"):
        return ConfigError(f"no rollout service at this address: {url} returned {status}; give the address {_PRINTED}")
    return ClusterError(message)


def _describe(error: Exception) -> str:
    return str(error) or type(error).__name__
