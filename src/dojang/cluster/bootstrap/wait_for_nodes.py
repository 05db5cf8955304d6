"""Waiting for the hosts of a job: until Ray counts a live node on every one of them, or not all came in time."""

import socket
import time
from collections.abc import Callable, Mapping
from contextlib import closing

from dojang.cluster.bootstrap.node_check import RollCall
from dojang.cluster.bootstrap.ray_node import RayNode
from dojang.cluster.bootstrap.rendezvous import Muster
from dojang.cluster.bootstrap.stop_signals import Stop
from dojang.core.errors import ClusterError, Interrupted

__all__ = ["Gathering"]

_TICK = 0.2


class Gathering:
    """The head's view of a cluster that is coming together."""

    def __init__(
        self, head: str, ray: str, muster: Muster, node: RayNode, stop: Stop, say: Callable[[str], None]
    ) -> None:
        self._head, self._ray, self._muster, self._node, self._stop, self._say = head, ray, muster, node, stop, say
        self._timeout, self._deadline = 0.0, 0.0

    def wait(self, environment: Mapping[str, str], timeout: float, deadline: float) -> dict[str, str]:
        """The address of every host. ClusterError names those that did not come by the deadline."""
        self._timeout, self._deadline = timeout, deadline
        self._until(self._listens, dict)
        with closing(RollCall(self._ray, environment)) as calling:
            # Not as soon as its port is open: Ray on a worker gives up if the head's own node is not registered soon.
            self._until(lambda: self._head in calling.alive(), calling.alive)
            self._muster.announce(self._ray)
            self._until(lambda: not self._missing(calling.alive()), calling.alive)
            alive = calling.alive()  # may count nodes that are none of the job's
            return {name: alive[name] for name in (self._head, *self._muster.expected) if name in alive}

    def _until(self, done: Callable[[], bool], alive: Callable[[], dict[str, str]]) -> None:
        while not done():
            if self._stop.wait(_TICK):
                raise Interrupted("told to stop before all hosts were there; the command has not been started")
            if words := self._node.revive():
                self._say(f"Ray ended, and is started again; it said: {words}")
            for name, reason in self._muster.left().items():
                raise ClusterError(f"{name} gave up: {reason}")
            if time.monotonic() > self._deadline:
                raise ClusterError(f"after {self._timeout:g} s: {self._complaint(self._missing(alive()))}")

    def _listens(self) -> bool:
        host, _, port = self._ray.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            return False
        return True

    def _missing(self, alive: Mapping[str, str]) -> dict[str, str]:
        """Who is missing, and how far it got."""
        came, away = self._muster.addresses(), self._muster.absent()
        missing = {}
        for name in (self._head, *self._muster.expected):
            if name in away:
                gone = f"was here ({came[name]}), but does not answer any more" if name in came else ""
                missing[name] = gone or "has not reported to the head"
            elif name not in alive:
                missing[name] = "is here, but Ray counts no live node there"
        return missing

    def _complaint(self, missing: Mapping[str, str]) -> str:
        each = "; ".join(f"{name} {why}" for name, why in missing.items())
        return (
            f"{len(missing)} of {len(self._muster.expected) + 1} hosts did not come: {each}. "
            "Each host has to run the same command, and to reach the head on the ports of Ray "
            f"({self._ray}) and of the muster ({self._muster.port}); --timeout allows more time"
        )
