"""Access to the viewer: checks of the host name and the token, and headers that restrict the page.

On a loopback address no token is needed, but the request must name a loopback host: a page of another site whose name
was made to point to 127.0.0.1 (DNS rebinding) would otherwise be able to read. Requests that start something need the
header X-Dojang, which forms of other sites cannot send. Any other address needs a token, which comes once in the URL
and then as a cookie.
"""

import hmac
import secrets
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dojang.core.errors import ConfigError
from dojang.core.http_service import LOOPBACK

__all__ = ["HEADERS", "Guard", "choose_token"]

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
_SHORTEST = 16


def choose_token(host: str, token: str | None) -> str | None:
    """Token that requests need: the one given, else a new one unless the host is a loopback address."""
    if token is not None and (len(token) < _SHORTEST or not token.isascii() or not token.isprintable()):
        raise ConfigError(
            f"--token must have at least {_SHORTEST} printable ASCII characters; leave it out for a random one"
        )
    return secrets.token_urlsafe(24) if token is None and host not in LOOPBACK else token


class Guard:
    """Middleware that lets only allowed requests through, and adds HEADERS to every reply."""

    def __init__(self, app: ASGIApp, *, token: str | None, loopback: bool) -> None:
        self._app, self._token, self._loopback = app, token, loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", ()), *given]
            await send(message)

        request = Request(scope, receive)
        refusal = self._refusal(request)
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        if self._loopback and _host(request) not in LOOPBACK:
            return _refuse(request, 403, "this viewer only answers to localhost and 127.0.0.1; open the URL it printed")
        if request.headers.get("sec-fetch-site") in ("cross-site", "same-site") and request.url.path.startswith("/api"):
            return _refuse(request, 403, "this API answers to its own page only")
        if self._token is not None and (found := self._check_token(request, self._token)) is not None:
            return found
        if request.method not in ("GET", "HEAD") and request.headers.get("x-dojang") != "1":
            return _refuse(request, 403, "requests that start something need the header X-Dojang: 1")
        return None

    def _check_token(self, request: Request, token: str) -> Response | None:
        """None if the request has the token. A token in the URL becomes a cookie, and leaves the URL."""
        in_url = request.query_params.get("token")
        if in_url is not None and _equal(in_url, token) and request.method == "GET":
            rest = urlencode([pair for pair in parse_qsl(request.url.query) if pair[0] != "token"])
            reply = RedirectResponse(request.url.path + (f"?{rest}" if rest else ""), 303)
            reply.set_cookie(_cookie(request), token, httponly=True, samesite="strict", path="/")
            return reply
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if _equal(request.cookies.get(_cookie(request), ""), token) or _equal(bearer, token):
            return None
        return _refuse(request, 401, "a token is needed: open the URL that dojang view printed, with its ?token=")


def _host(request: Request) -> str:
    """Name in the Host header, without its port."""
    host = request.headers.get("host", "").lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host


def _cookie(request: Request) -> str:
    """Name of the cookie. Cookies are shared by all ports of a host, so each viewer has another."""
    return f"dojang_view_{request.url.port or 80}"


def _equal(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())


def _refuse(request: Request, status: int, detail: str) -> Response:
    headers: dict[str, Any] = {"Cache-Control": "no-store"}
    if request.url.path.startswith("/api"):
        return JSONResponse({"error": detail}, status, headers)
    return PlainTextResponse(detail + "\n", status, headers)
