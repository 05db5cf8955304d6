"""Lines of JSON between the head's bootstrap process and those of the other hosts, and how a host proves itself.

The secret itself is never sent: the head sends a number, and the host that number signed. What is said is not
encrypted; nothing secret is.
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

__all__ = ["BEAT", "SILENCE", "Broken", "Wire", "job_secret", "proof"]

BEAT = 5.0
"""A host that has nothing to say says so this often, in seconds, and is answered."""

SILENCE = 3 * BEAT
"""After so much silence a connection counts as broken, whatever TCP still hopes for."""

_LONGEST = 1 << 16


class Broken(Exception):
    """There is nobody at the other end, or nobody who speaks this language."""


class Wire:
    """One connection. One thread reads; any may write."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(SILENCE)
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
            raise Broken(str(error)) from None

    def receive(self) -> dict[str, Any]:
        try:
            line = self._reader.readline(_LONGEST)
            message = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError) as error:
            raise Broken(str(error)) from None
        if not isinstance(message, dict):
            raise Broken("closed" if not line else "not a message")
        return message

    def close(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # wakes whoever is reading
        self._connection.close()


def job_secret(hosts: Sequence[str], environment: Mapping[str, str] = os.environ) -> bytes:
    """What the hosts of a job have in common: a token if there is one. Without it, what only keeps jobs apart."""
    names = ("RAY_AUTH_TOKEN", "TRAINING_JOB_ARN", "SLURM_JOB_ID")
    shared = [*hosts, *(environment.get(name, "") for name in names)]
    return hashlib.sha256("\0".join(["dojang muster", *shared]).encode()).digest()


def proof(secret: bytes, nonce: str, name: str) -> str:
    return hmac.new(secret, f"{nonce}\0{name}".encode(), hashlib.sha256).hexdigest()
