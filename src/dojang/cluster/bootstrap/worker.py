"""What every host but the head does: offer Ray a node until the head says that it is over."""

import time
from collections.abc import Callable

from dojang.cluster.bootstrap.head_connection import Link
from dojang.cluster.bootstrap.messages import job_secret
from dojang.cluster.bootstrap.options import End, Options
from dojang.cluster.bootstrap.ray_node import RayNode, ray_environment, worker_command
from dojang.cluster.bootstrap.stop_signals import Stop
from dojang.cluster.bootstrap.topology import Roster
from dojang.core.errors import ClusterError, Interrupted

__all__ = ["serve"]

_TICK = 0.2


def serve(roster: Roster, options: Options, stop: Stop, say: Callable[[str], None]) -> End:
    """The exit code is the head's, if it can be known."""
    environment = ray_environment(roster.interface)
    worker_command("", "", "", options)  # is Ray installed?
    secret = job_secret(roster.hosts)
    link = Link(roster.head, options.muster_port, roster.me, secret, options.timeout, options.patience)
    member = _Member(roster.me, link, options, environment, say)
    end = End(ClusterError.exit_code, "the bootstrap process broke down")
    try:
        end = member.serve(stop)
    finally:
        member.stop()
        link.close(end.text or "done")
    return end


class _Member:
    """A host of the cluster, and its Ray node."""

    def __init__(
        self, name: str, link: Link, options: Options, environment: dict[str, str], say: Callable[[str], None]
    ) -> None:
        self._name = name
        self._link, self._options, self._environment, self._say = link, options, environment, say
        self._node: RayNode | None = None

    def serve(self, stop: Stop) -> End:
        asked = False
        while True:
            if self._link.ended:
                return self._link.ended
            if self._link.lost:
                return End(ClusterError.exit_code, self._link.lost)
            if stop.since is not None:
                if not self._link.ray or time.monotonic() - stop.since > self._options.grace:
                    return End(Interrupted.exit_code, "told to stop")
                if not asked:
                    asked = True
                    self._tell(f"told to stop; serves for {self._options.grace:g} s more at most")
            try:
                self._look_after_ray()
            except ClusterError as error:
                return End(error.exit_code, str(error))
            time.sleep(_TICK)

    def stop(self) -> None:
        if self._node:
            self._node.close()
            self._node = None

    def _look_after_ray(self) -> None:
        """Start Ray when the head has; again, should it end: to Ray a host cut off for a while is dead."""
        if not self._link.ray or not self._link.connected:
            return
        if not self._node:
            command = worker_command(self._name, self._link.address, self._link.ray, self._options)
            self._node = RayNode(self._name, command, self._environment)
        elif words := self._node.revive():
            self._tell(f"Ray ended, and is started again; it said: {words}")

    def _tell(self, text: str) -> None:
        self._say(text)
        self._link.note(text)
