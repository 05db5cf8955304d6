"""Parts of HTTP services: the listening server, tokens, limited request bodies, and error replies.

Every error is {"error": code, "detail": text}. TLS is left to a reverse proxy.
"""

import asyncio
import hmac
import socket
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from dojang.core.errors import ConfigError

__all__ = [
    "ERROR_HANDLERS",
    "LOOPBACK",
    "HttpServer",
    "Refusal",
    "address_of",
    "cancel_on_disconnect",
    "check_token",
    "discard_body",
    "open_listener",
    "read_body",
    "refuse",
]

T = TypeVar("T")

_LAST_PORT = 65_535
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class HttpServer(uvicorn.Server):
    """Serves an application. Handles no signals: uvicorn would stop listening before draining, and die of them."""

    def __init__(self, app: Starlette) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=75,  # longer than the clients', so that no connection closes during a request
                timeout_graceful_shutdown=2,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def open_listener(host: str, port: int) -> socket.socket:
    """Listens on an address; port 0 takes any free one. Raises ConfigError if it cannot."""
    if not 0 <= port <= _LAST_PORT:  # getaddrinfo would take the remainder: another port than the one asked for
        raise ConfigError(f"port={port} is no port; choose one from 1 to {_LAST_PORT}, or 0 for any free one")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.create_server(address[:2], family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on host={host} port={port}: {error}; choose another port or host") from error
    # Accepted connections inherit it. asyncio sets it only for sockets whose protocol is named. Without it a reply of
    # two parts waits for the client's delayed acknowledgement, 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def address_of(listener: socket.socket) -> str:
    """URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@dataclass(eq=False)
class Refusal(Exception):
    """An error reply to a request."""

    status: int
    code: str
    detail: str
    headers: dict[str, str] = field(default_factory=dict)
    problems: Sequence[str] = ()


def refuse(refusal: Refusal) -> Response:
    """Response of an error."""
    content: dict[str, Any] = {"error": refusal.code, "detail": refusal.detail}
    if refusal.problems:
        content["problems"] = refusal.problems
    return JSONResponse(content, refusal.status, refusal.headers)


def check_token(request: Request, token: str | None, owner: str) -> None:
    """Raises a Refusal unless the request has the token; None disables the check."""
    if token is None:
        return
    given = request.headers.get("authorization", "").encode("latin-1")
    if not hmac.compare_digest(given, b"Bearer " + token.encode()):
        raise Refusal(
            401, "unauthorized", f"send the {owner}'s token as Authorization: Bearer", {"WWW-Authenticate": "Bearer"}
        )


async def read_body(request: Request, most_mb: float, limit_s: float) -> bytes:
    """Reads the body and counts bytes as they arrive: Content-Length is only a claim of the client."""
    too_large = Refusal(413, "too_large", f"the request is larger than {most_mb:g} MiB")
    if int(request.headers.get("content-length", 0)) > most_mb * 2**20:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(limit_s), aclosing(request.stream()) as stream:
            async for chunk in stream:
                body += chunk
                if len(body) > most_mb * 2**20:
                    raise too_large
    except TimeoutError:
        raise Refusal(408, "too_slow", f"the request did not arrive within {limit_s:g} s") from None
    return bytes(body)


async def discard_body(request: Request, limit_s: float) -> bool:
    """Reads the rest of a refused request, for a while: a client that is cut off never sees the reason. Returns whether
    it ended."""
    try:
        async with asyncio.timeout(limit_s), aclosing(request.stream()) as stream:
            async for _ in stream:
                pass
    except (TimeoutError, ClientDisconnect):
        return False
    except RuntimeError:  # starlette raises it if the body was read completely
        return True
    return True


async def cancel_on_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Awaits the work; cancels it if the client disconnects."""
    working = asyncio.create_task(work)
    gone = asyncio.create_task(_wait_for_disconnect(request))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        gone.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    return refuse(Refusal(error.status_code, code, error.detail, dict(error.headers or {})))


async def _internal_error(request: Request, error: Exception) -> Response:
    return refuse(Refusal(500, "internal", f"the service failed ({type(error).__name__})"))


ERROR_HANDLERS = {HTTPException: _http_error, Exception: _internal_error}
"""Handlers of a Starlette application for unknown routes and unexpected errors."""
