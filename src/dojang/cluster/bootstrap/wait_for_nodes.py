"""Waits until Ray counts a live node on every host of the job, or the deadline passes."""

import socket
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass

from dojang.cluster.bootstrap.node_check import NodeCheck
from dojang.cluster.bootstrap.ray_node import RayNode
from dojang.cluster.bootstrap.rendezvous import Rendezvous
from dojang.cluster.bootstrap.stop_signals import Stop
from dojang.core.errors import ClusterError, Interrupted

__all__ = ["NodeWait"]

_TICK = 0.2


@dataclass(frozen=True)
class NodeWait:
    """Waits on the head for the nodes of all hosts."""

    head: str
    ray: str
    rendezvous: Rendezvous
    node: RayNode
    stop: Stop
    log: Callable[[str], None]
    timeout: float
    deadline: float

    def wait(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Returns the address of every host. Raises ClusterError with the missing hosts at the deadline."""
        self._until(self._listens, dict)
        with closing(NodeCheck(self.ray, environment)) as node_check:
            # An open port is not enough: Ray on a worker gives up if the head's own node is not registered soon.
            self._until(lambda: self.head in node_check.alive(), node_check.alive)
            self.rendezvous.announce(self.ray)
            self._until(lambda: not self._missing(node_check.alive()), node_check.alive)
            alive = node_check.alive()  # may include nodes from outside the job
            return {name: alive[name] for name in (self.head, *self.rendezvous.expected) if name in alive}

    def _until(self, done: Callable[[], bool], alive: Callable[[], dict[str, str]]) -> None:
        while not done():
            if self.stop.wait(_TICK):
                raise Interrupted("told to stop before all hosts had joined; the command was not started")
            if output := self.node.restart_if_ended():
                self.log(f"Ray ended and was restarted; its last output: {output}")
            for name, reason in self.rendezvous.left().items():
                raise ClusterError(f"{name} gave up: {reason}")
            if time.monotonic() > self.deadline:
                raise ClusterError(f"after {self.timeout:g} s: {self._missing_text(self._missing(alive()))}")

    def _listens(self) -> bool:
        host, _, port = self.ray.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            return False
        return True

    def _missing(self, alive: Mapping[str, str]) -> dict[str, str]:
        """Missing hosts, each with how far it got."""
        joined, away = self.rendezvous.addresses(), self.rendezvous.not_connected()
        missing = {}
        for name in (self.head, *self.rendezvous.expected):
            if name in away:
                gone = f"joined ({joined[name]}), but no longer answers" if name in joined else ""
                missing[name] = gone or "has not connected to the head"
            elif name not in alive:
                missing[name] = "joined, but Ray has no live node there"
        return missing

    def _missing_text(self, missing: Mapping[str, str]) -> str:
        each = "; ".join(f"{name} {why}" for name, why in missing.items())
        return (
            f"{len(missing)} of {len(self.rendezvous.expected) + 1} hosts are missing: {each}. "
            "Each host must run the same command and reach the head on the ports of Ray "
            f"({self.ray}) and of the rendezvous ({self.rendezvous.port}); --timeout allows more time"
        )
