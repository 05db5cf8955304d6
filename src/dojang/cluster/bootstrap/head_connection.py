"""A worker's connection to the head: connects, authenticates, and reconnects after a disconnect.

The head's messages set `ray` (Ray's address), `ended` and `lost`. The head counts as lost after `timeout` seconds
without a first connection, or after `reconnect` seconds of disconnection later.
"""

import secrets
import socket
import threading
import time
from contextlib import suppress
from typing import Any

from dojang.cluster.bootstrap.messages import HEARTBEAT, ConnectionLost, JsonConnection, proof
from dojang.cluster.bootstrap.options import JobResult

__all__ = ["HeadConnection"]


class HeadConnection:
    """Connection to the head's rendezvous server, maintained by a background thread until closed."""

    def __init__(self, head: str, port: int, name: str, secret: bytes, timeout: float, reconnect: float = 60.0) -> None:
        self.ray = ""
        self.address = ""
        self.ended: JobResult | None = None
        self.lost = ""
        self._head, self._port, self._name, self._secret = head, port, name, secret
        self._instance = secrets.token_hex(8)
        self._deadline = time.monotonic() + timeout
        self._allowed, self._reconnect = timeout, reconnect
        self._conn: JsonConnection | None = None
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._maintain, self._send_heartbeats)]
        for thread in self._threads:
            thread.start()

    @property
    def over(self) -> bool:
        """True once the job has ended or the head is lost."""
        return self.ended is not None or bool(self.lost)

    @property
    def connected(self) -> bool:
        return self._conn is not None

    def note(self, text: str) -> None:
        """Sends a line for the head's log."""
        self._send({"note": text})

    def close(self, reason: str = "done") -> None:
        self._send({"bye": reason})
        self._closed.set()
        if self._conn:
            self._conn.close()
        for thread in self._threads:
            thread.join(HEARTBEAT)

    def _send(self, message: dict[str, object]) -> None:
        if self._conn:
            with suppress(ConnectionLost):
                self._conn.send(message)

    def _send_heartbeats(self) -> None:
        while not self._closed.wait(HEARTBEAT):
            self._send({"beat": 1})

    def _maintain(self) -> None:
        why = "no answer"
        while not self._closed.is_set() and not self.over:
            try:
                self._run_session()
            except (ConnectionLost, OSError) as error:
                why = str(error) or type(error).__name__
            if self.over:
                return
            if self._conn:  # it was connected
                self._conn = None
                self._allowed, self._deadline = self._reconnect, time.monotonic() + self._reconnect
            if time.monotonic() > self._deadline:
                self.lost = (
                    f"the head {self._head} could not be reached on port {self._port} for {self._allowed:g} s ({why})"
                )
            self._closed.wait(0.5)

    def _run_session(self) -> None:
        connection = socket.create_connection((self._head, self._port), timeout=HEARTBEAT)
        conn = JsonConnection(connection)
        try:
            nonce = str(conn.receive().get("nonce", ""))
            signed = proof(self._secret, nonce, self._name)
            conn.send({"hello": self._name, "instance": self._instance, "proof": signed})
            self._handle(conn.receive())
            if self.lost:
                return
            self.address, self._conn = conn.own, conn
            while not self.over:
                self._handle(conn.receive())
        finally:
            if self.ended is None:  # otherwise close() still has to send the goodbye
                conn.close()

    def _handle(self, message: dict[str, Any]) -> None:
        if "refused" in message:
            self.lost = f"the head {self._head} refused this host: {message['refused']}"
        if message.get("ray"):
            self.ray = str(message["ray"])
        if "end" in message:
            self.ended = JobResult(int(message["end"]), str(message.get("text", "")))
