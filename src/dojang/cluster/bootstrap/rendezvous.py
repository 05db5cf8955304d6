"""Rendezvous server of the head: tracks which workers have joined, and tells them when to start Ray and when to end.

Ray knows nodes, not the job's host names, and cannot tell a host the exit code of the command. A worker that
disconnects may reconnect: it counts as lost after `reconnect` seconds. A lost worker is only logged: Ray reschedules
its work elsewhere.
"""

import hmac
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dojang.cluster.bootstrap.messages import ConnectionLost, JsonConnection, proof
from dojang.core.errors import ClusterError

__all__ = ["Rendezvous"]


@dataclass
class _Host:
    """State of one expected host."""

    conn: JsonConnection | None = None
    instance: str = ""
    address: str = ""
    disconnected_since: float | None = None
    left: str = ""  # the reason it gave when it left
    lost: bool = False


class Rendezvous:
    """Accepts connections from the workers of a job."""

    def __init__(
        self,
        address: str,
        port: int,
        expected: Iterable[str],
        secret: bytes,
        log: Callable[[str], None],
        reconnect: float = 60.0,
    ) -> None:
        self.expected = tuple(expected)
        self._hosts = {name: _Host() for name in self.expected}
        self._secret, self._log, self._reconnect = secret, log, reconnect
        self._lock = threading.Lock()
        self._ray = ""
        self._end: dict[str, object] | None = None
        try:
            self._server = socket.create_server((address, port), backlog=len(self._hosts) + 16)
        except OSError as error:
            raise ClusterError(
                f"cannot listen for the other hosts on {address}:{port}: {error.strerror}; "
                f"is another job running here? Choose another --rendezvous-port, the same on all hosts"
            ) from None
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def announce(self, ray: str) -> None:
        """Sends Ray's address to all workers, including those that join later."""
        with self._lock:
            self._ray = ray
        self._broadcast({"ray": ray})

    def not_connected(self) -> list[str]:
        """Names of the workers that are not connected now."""
        with self._lock:
            return [name for name, host in self._hosts.items() if host.conn is None]

    def left(self) -> dict[str, str]:
        """Names of the workers that left, with their reasons."""
        with self._lock:
            return {name: host.left for name, host in self._hosts.items() if host.left}

    def addresses(self) -> dict[str, str]:
        """Addresses of all workers that have ever joined."""
        with self._lock:
            return {name: host.address for name, host in self._hosts.items() if host.address}

    def report_lost_hosts(self) -> None:
        """Logs workers that have been disconnected for too long. Call it regularly."""
        now, lost = time.monotonic(), []
        with self._lock:
            for name, host in self._hosts.items():
                since = host.disconnected_since
                if not host.lost and since is not None and now - since > self._reconnect:
                    host.lost = True
                    lost.append(name)
        for name in lost:
            self._log(f"{name} is lost; continuing with {len(self._connected()) + 1} of {len(self._hosts) + 1} hosts")

    def end(self, code: int, text: str, seconds: float = 15.0) -> None:
        """Sends the job's result to all workers, including those that reconnect late; waits until they have left."""
        with self._lock:
            self._end = {"end": code, "text": text}
        self._broadcast(self._end)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with self._lock:
                waiting = any(
                    host.conn or (host.disconnected_since is not None and not host.lost and not host.left)
                    for host in self._hosts.values()
                )
            if not waiting:
                break
            self.report_lost_hosts()
            time.sleep(0.05)

    def close(self) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for conn in self._connected():
            conn.close()

    def _connected(self) -> list[JsonConnection]:
        with self._lock:
            return [host.conn for host in self._hosts.values() if host.conn]

    def _broadcast(self, message: dict[str, object]) -> None:
        for conn in self._connected():
            with suppress(ConnectionLost):  # its reader thread notices as well
                conn.send(message)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Handles one connection from handshake to close."""
        try:
            conn = JsonConnection(connection)
        except OSError:  # closed before it was accepted
            connection.close()
            return
        name = ""
        try:
            name = self._authenticate(conn)
            if name:
                conn.send(self._end or {"ray": self._ray})
            while name:
                self._handle(name, conn, conn.receive())
        except ConnectionLost:
            pass
        finally:
            conn.close()
            if name:
                self._on_disconnect(name, conn)

    def _authenticate(self, conn: JsonConnection) -> str:
        """Returns the worker's name after it has authenticated; empty if it was refused."""
        nonce = secrets.token_hex(16)
        conn.send({"nonce": nonce})
        hello = conn.receive()
        name, instance = str(hello.get("hello", "")), str(hello.get("instance", ""))
        refusal = self._refusal(name, instance, str(hello.get("proof", "")), nonce)
        if refusal:
            self._log(f"refused {name[:64]!r} from {conn.peer}: {refusal}")
            conn.send({"refused": refusal})
            return ""
        with self._lock:
            host = self._hosts[name]
            before, again = host.conn, host.instance != ""
            host.conn, host.instance, host.address = conn, instance, conn.peer
            host.disconnected_since, host.left, host.lost = None, "", False
        if before:
            before.close()
        self._log(f"{name} reconnected" if again else f"{name} joined ({conn.peer})")
        return name

    def _refusal(self, name: str, instance: str, proven: str, nonce: str) -> str:
        if not hmac.compare_digest(proven.encode(), proof(self._secret, nonce, name).encode()):
            return "it belongs to another job, or its RAY_AUTH_TOKEN differs from the head's"
        if name not in self._hosts:
            return f"not one of the hosts of this job, which are {', '.join(self._hosts)} and the head"
        with self._lock:
            host = self._hosts[name]
            if host.conn and host.instance != instance:
                return "a host with this name has joined already; names must be unique, and each host runs once"
        return ""

    def _handle(self, name: str, conn: JsonConnection, message: dict[str, Any]) -> None:
        if "beat" in message:
            conn.send({"beat": 1})
        if "note" in message:
            self._log(f"{name}: {message['note']}")
        if "bye" in message:
            with self._lock:
                self._hosts[name].left = str(message["bye"])

    def _on_disconnect(self, name: str, conn: JsonConnection) -> None:
        with self._lock:
            host = self._hosts[name]
            if host.conn is not conn:
                return  # it reconnected already
            host.conn = None
            if not host.left:
                host.disconnected_since = time.monotonic()
            ending, left = self._end is not None, host.left
        if not ending:
            waiting = f"does not answer; waiting {self._reconnect:g} s for it to reconnect"
            self._log(f"{name} left: {left}" if left else f"{name} {waiting}")
