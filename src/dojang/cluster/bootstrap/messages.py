"""Rendezvous protocol: JSON lines between the head and its workers, with challenge-response authentication.

The secret is never sent: the head sends a nonce, and the worker returns its HMAC. Messages are not encrypted and
contain no secrets.
"""

import hashlib
import hmac
import json
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

__all__ = ["HEARTBEAT", "RECEIVE_TIMEOUT", "ConnectionLost", "JsonConnection", "job_secret", "proof"]

HEARTBEAT = 5.0
"""Seconds between heartbeats. The head answers each one."""

RECEIVE_TIMEOUT = 3 * HEARTBEAT
"""Seconds without a message after which a connection counts as lost, even if TCP still holds it open."""

_MAX_LINE_BYTES = 1 << 16


class ConnectionLost(Exception):
    """The peer closed the connection, timed out, or sent something that is not a message."""


class JsonConnection:
    """Sends and receives JSON objects over a socket. One thread reads; any thread may write."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(RECEIVE_TIMEOUT)
        self.peer = str(connection.getpeername()[0])
        self.own = str(connection.getsockname()[0])
        self._connection = connection
        self._reader = connection.makefile("rb")
        self._writing = threading.Lock()

    def send(self, message: Mapping[str, object]) -> None:
        try:
            with self._writing:
                self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise ConnectionLost(str(error)) from None

    def receive(self) -> dict[str, Any]:
        try:
            line = self._reader.readline(_MAX_LINE_BYTES)
            message = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError) as error:
            raise ConnectionLost(str(error)) from None
        if not isinstance(message, dict):
            raise ConnectionLost("closed" if not line else "not a message")
        return message

    def close(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # wakes the reading thread
        self._connection.close()


def job_secret(hosts: Sequence[str], environment: Mapping[str, str] = os.environ) -> bytes:
    """Derives the shared secret from the hosts, the job's ID and RAY_AUTH_TOKEN.

    Without a token it only keeps jobs apart; it is no protection.
    """
    names = ("RAY_AUTH_TOKEN", "TRAINING_JOB_ARN", "SLURM_JOB_ID")
    shared = [*hosts, *(environment.get(name, "") for name in names)]
    return hashlib.sha256("\0".join(["dojang rendezvous", *shared]).encode()).digest()


def proof(secret: bytes, nonce: str, name: str) -> str:
    """Signs a nonce and a host's name with the shared secret (HMAC-SHA256)."""
    return hmac.new(secret, f"{nonce}\0{name}".encode(), hashlib.sha256).hexdigest()
