"""A host's connection to the head: it dials, proves itself, and dials again when the connection breaks.

What the head has said is in `ray`, `ended` and `lost`. A head that has not been there for `timeout` seconds at first,
or for `patience` seconds later on, is lost.
"""

import secrets
import socket
import threading
import time
from contextlib import suppress
from typing import Any

from dojang.cluster.bootstrap.messages import BEAT, Broken, Wire, proof
from dojang.cluster.bootstrap.options import End

__all__ = ["Link"]


class Link:
    """Kept up by a thread of its own until it is closed."""

    def __init__(self, head: str, port: int, name: str, secret: bytes, timeout: float, patience: float = 60.0) -> None:
        self.ray = ""
        self.address = ""
        self.ended: End | None = None
        self.lost = ""
        self._head, self._port, self._name, self._secret = head, port, name, secret
        self._instance = secrets.token_hex(8)
        self._deadline = time.monotonic() + timeout
        self._allowed, self._patience = timeout, patience
        self._wire: Wire | None = None
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._keep, self._beat)]
        for thread in self._threads:
            thread.start()

    @property
    def over(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.ended is not None or bool(self.lost)

    @property
    def connected(self) -> bool:
        return self._wire is not None

    def note(self, text: str) -> None:
        """A line for the people who watch the head."""
        self._say({"note": text})

    def close(self, reason: str = "done") -> None:
        self._say({"bye": reason})
        self._closed.set()
        if self._wire:
            self._wire.close()
        for thread in self._threads:
            thread.join(BEAT)

    def _say(self, message: dict[str, object]) -> None:
        if self._wire:
            with suppress(Broken):
                self._wire.send(message)

    def _beat(self) -> None:
        while not self._closed.wait(BEAT):
            self._say({"beat": 1})

    def _keep(self) -> None:
        why = "nobody answers"
        while not self._closed.is_set() and not self.over:
            try:
                self._converse()
            except (Broken, OSError) as error:
                why = str(error) or type(error).__name__
            if self.over:
                return
            if self._wire:  # it was there a moment ago
                self._wire = None
                self._allowed, self._deadline = self._patience, time.monotonic() + self._patience
            if time.monotonic() > self._deadline:
                self.lost = (
                    f"the head, {self._head}, has not been reached on port {self._port} for {self._allowed:g} s ({why})"
                )
            self._closed.wait(0.5)

    def _converse(self) -> None:
        connection = socket.create_connection((self._head, self._port), timeout=BEAT)
        wire = Wire(connection)
        try:
            nonce = str(wire.receive().get("nonce", ""))
            signed = proof(self._secret, nonce, self._name)
            wire.send({"hello": self._name, "instance": self._instance, "proof": signed})
            self._hear(wire.receive())
            if self.lost:
                return
            self.address, self._wire = wire.own, wire
            while not self.over:
                self._hear(wire.receive())
        finally:
            if self.ended is None:  # then the last word, that this host has gone, is still to be said
                wire.close()

    def _hear(self, message: dict[str, Any]) -> None:
        if "refused" in message:
            self.lost = f"the head, {self._head}, turned this host away: {message['refused']}"
        if message.get("ray"):
            self.ray = str(message["ray"])
        if "end" in message:
            self.ended = End(int(message["end"]), str(message.get("text", "")))
