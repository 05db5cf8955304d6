"""Download of a large answer, in a thread: several times as fast as by httpx, and beside the event loop.

A download that was cut goes on where it ended, if the server still has the same content (ETag).
"""

import http.client
import re
import socket
import ssl
from contextlib import closing, suppress
from urllib.parse import urlsplit

from dojang.core.keepalive import KEEPALIVE

__all__ = ["Download", "ErrorReply"]

_PIECE = 2**20


class ErrorReply(Exception):
    """The server answered with an error."""

    def __init__(self, status: int, content: bytes) -> None:
        super().__init__(f"status {status}")
        self.status, self.content = status, content


class Download:
    """One answer and how far it has come. `fetch` may be called until it succeeds."""

    def __init__(self, url: str, token: str, timeout_s: float) -> None:
        """`timeout_s`: longest time without a byte."""
        self._url, self._token, self._timeout_s = urlsplit(url), token, timeout_s
        self._data = bytearray()
        self.size = 0
        """Bytes received."""
        self._tag = ""
        self._socket: socket.socket | None = None

    def fetch(self) -> bytearray:
        """Requests what is missing. Raises OSError or HTTPException if the connection fails, ErrorReply if it was
        refused."""
        with closing(self._connect()) as connection:
            connection.request("GET", f"{self._url.path}?{self._url.query}", headers=self._headers())
            with connection.getresponse() as response:
                self._begin(response)
                view = memoryview(self._data)
                while self.size < len(view):
                    if not (count := response.readinto(view[self.size : self.size + _PIECE])):
                        raise ConnectionError(f"the connection ended after {self.size} of {len(view)} bytes")
                    self.size += count
        return self._data

    def cancel(self) -> None:
        """Ends `fetch` in another thread, by an error."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        connection = http.client.HTTPConnection(host, port, timeout=self._timeout_s)
        if self._url.scheme == "https":
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=context)
        connection.connect()
        self._socket = connection.sock
        for option in KEEPALIVE:
            self._socket.setsockopt(*option)
        return connection

    def _headers(self) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self._token}"}
        if self.size:
            headers |= {"Range": f"bytes={self.size}-", "If-Range": self._tag}
        return headers

    def _begin(self, response: http.client.HTTPResponse) -> None:
        """Prepares for the content: its rest, or all of it."""
        if response.status == http.client.PARTIAL_CONTENT:
            sent = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
            if sent is None or (int(sent[1]), int(sent[2])) != (self.size, len(self._data)):
                raise ConnectionError(f"another part came than the one from byte {self.size} on")
        elif response.status == http.client.OK:
            if not (length := response.headers.get("Content-Length", "")).isdecimal():  # cut within its headers
                raise ConnectionError("the answer has no length")
            self.size, self._data = 0, bytearray(int(length))
            self._tag = response.headers.get("ETag", "")
        else:
            raise ErrorReply(response.status, response.read(_PIECE))
