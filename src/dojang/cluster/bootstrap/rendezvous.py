"""Who of the expected hosts is there, as the head sees it, and the way to tell them when to begin and when to end.

Ray knows of nodes, not of hosts by their names in the job, and it cannot tell a host what became of the command. A
connection that breaks may come back: a host is lost only after `patience` seconds. Losing one is said, and that is all:
Ray does its work elsewhere.
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

from dojang.cluster.bootstrap.messages import Broken, Wire, proof
from dojang.core.errors import ClusterError

__all__ = ["Muster"]


@dataclass
class _Host:
    """What is known of an expected host."""

    wire: Wire | None = None
    instance: str = ""
    address: str = ""
    broken: float | None = None  # since when
    left: str = ""  # what it said when it went
    lost: bool = False


class Muster:
    """Listens for the hosts of a job."""

    def __init__(
        self,
        address: str,
        port: int,
        expected: Iterable[str],
        secret: bytes,
        say: Callable[[str], None],
        patience: float = 60.0,
    ) -> None:
        self.expected = tuple(expected)
        self._hosts = {name: _Host() for name in self.expected}
        self._secret, self._say, self._patience = secret, say, patience
        self._lock = threading.Lock()
        self._ray = ""
        self._end: dict[str, object] | None = None
        try:
            self._server = socket.create_server((address, port), backlog=len(self._hosts) + 16)
        except OSError as error:
            raise ClusterError(
                f"cannot listen for the other hosts on {address}:{port}: {error.strerror}; "
                f"is another job running here? --muster-port chooses another port, the same on all hosts"
            ) from None
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def announce(self, ray: str) -> None:
        """Tell everybody, also those to come, where Ray is."""
        with self._lock:
            self._ray = ray
            wires = self._wires()
        self._tell(wires, {"ray": ray})

    def absent(self) -> list[str]:
        """Those who are not connected."""
        with self._lock:
            return [name for name, host in self._hosts.items() if host.wire is None]

    def left(self) -> dict[str, str]:
        """Those who have gone of their own accord, and what they said."""
        with self._lock:
            return {name: host.left for name, host in self._hosts.items() if host.left}

    def addresses(self) -> dict[str, str]:
        """Where those who have ever come are."""
        with self._lock:
            return {name: host.address for name, host in self._hosts.items() if host.address}

    def watch(self) -> None:
        """Say who has been lost. To be called every now and then."""
        now, lost = time.monotonic(), []
        with self._lock:
            for name, host in self._hosts.items():
                if not host.lost and host.broken is not None and now - host.broken > self._patience:
                    host.lost = True
                    lost.append(name)
            here = len(self._wires())
        for name in lost:
            self._say(f"{name} is lost; going on with {here + 1} of {len(self._hosts) + 1} hosts")

    def end(self, code: int, text: str, seconds: float = 15.0) -> None:
        """Tell everybody, also those who come back late, how it ended, and wait until they have gone."""
        with self._lock:
            self._end = {"end": code, "text": text}
            wires = self._wires()
        self._tell(wires, self._end)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with self._lock:
                waiting = any(
                    h.wire or (h.broken is not None and not h.lost and not h.left) for h in self._hosts.values()
                )
            if not waiting:
                break
            self.watch()
            time.sleep(0.05)

    def close(self) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        with self._lock:
            wires = self._wires()
        for wire in wires:
            wire.close()

    def _wires(self) -> list[Wire]:
        return [host.wire for host in self._hosts.values() if host.wire]

    def _tell(self, wires: Iterable[Wire], message: dict[str, object]) -> None:
        for wire in wires:
            with suppress(Broken):  # its reader finds out, too
                wire.send(message)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """One connection, from hello to its end."""
        try:
            wire = Wire(connection)
        except OSError:  # gone before it was looked at
            connection.close()
            return
        name = ""
        try:
            name = self._admit(wire)
            if name:
                wire.send(self._end or {"ray": self._ray})
            while name:
                self._hear(name, wire, wire.receive())
        except Broken:
            pass
        finally:
            wire.close()
            if name:
                self._broke(name, wire)

    def _admit(self, wire: Wire) -> str:
        """The name of the host, once it has proved to be one of this job. Empty if it is turned away."""
        nonce = secrets.token_hex(16)
        wire.send({"nonce": nonce})
        hello = wire.receive()
        name, instance = str(hello.get("hello", "")), str(hello.get("instance", ""))
        refusal = self._refusal(name, instance, str(hello.get("proof", "")), nonce)
        if refusal:
            self._say(f"turned away {name[:64]!r} from {wire.peer}: {refusal}")
            wire.send({"refused": refusal})
            return ""
        with self._lock:
            host = self._hosts[name]
            before, again = host.wire, host.instance != ""
            host.wire, host.instance, host.address = wire, instance, wire.peer
            host.broken, host.left, host.lost = None, "", False
        if before:
            before.close()
        self._say(f"{name} is back" if again else f"{name} is here ({wire.peer})")
        return name

    def _refusal(self, name: str, instance: str, proven: str, nonce: str) -> str:
        if not hmac.compare_digest(proven.encode(), proof(self._secret, nonce, name).encode()):
            return "it is of another job, or its RAY_AUTH_TOKEN is not the head's"
        if name not in self._hosts:
            return f"not one of the hosts of this job, which are {', '.join(self._hosts)} and the head"
        with self._lock:
            host = self._hosts[name]
            if host.wire and host.instance != instance:
                return "a host of that name is here already; each host has a name of its own, and runs the command once"
        return ""

    def _hear(self, name: str, wire: Wire, message: dict[str, Any]) -> None:
        if "beat" in message:
            wire.send({"beat": 1})
        if "note" in message:
            self._say(f"{name}: {message['note']}")
        if "bye" in message:
            with self._lock:
                self._hosts[name].left = str(message["bye"])

    def _broke(self, name: str, wire: Wire) -> None:
        with self._lock:
            host = self._hosts[name]
            if host.wire is not wire:
                return  # it has a new one
            host.wire = None
            if not host.left:
                host.broken = time.monotonic()
            ending, left = self._end is not None, host.left
        if not ending:
            waiting = f"does not answer; waiting {self._patience:g} s for it to come back"
            self._say(f"{name} leaves: {left}" if left else f"{name} {waiting}")
