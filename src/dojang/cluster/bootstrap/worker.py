"""A worker: runs a Ray node until the head reports the end of the job."""

import time
from collections.abc import Callable

from dojang.cluster.bootstrap.head_connection import HeadConnection
from dojang.cluster.bootstrap.messages import job_secret
from dojang.cluster.bootstrap.options import JobResult, Options
from dojang.cluster.bootstrap.ray_node import RayNode, ray_environment, worker_command
from dojang.cluster.bootstrap.stop_signals import Stop
from dojang.cluster.bootstrap.topology import Topology
from dojang.core.errors import ClusterError, Interrupted

__all__ = ["run_worker"]

_TICK = 0.2


def run_worker(topology: Topology, options: Options, stop: Stop, log: Callable[[str], None]) -> JobResult:
    """Runs a worker to its end. The result is the head's, if the head could report it."""
    environment = ray_environment(topology.interface)
    worker_command("", "", "", options)  # raises if Ray is not installed
    secret = job_secret(topology.hosts)
    head = HeadConnection(
        topology.head, options.rendezvous_port, topology.this_host, secret, options.timeout, options.reconnect
    )
    worker = _Worker(topology.this_host, head, options, environment, log)
    end = JobResult(ClusterError.exit_code, "the bootstrap process crashed")
    try:
        end = worker.serve(stop)
    finally:
        worker.stop()
        head.close(end.text or "done")
    return end


class _Worker:
    """A worker host and its Ray node."""

    def __init__(
        self, name: str, head: HeadConnection, options: Options, environment: dict[str, str], log: Callable[[str], None]
    ) -> None:
        self._name = name
        self._head, self._options, self._environment, self._log = head, options, environment, log
        self._node: RayNode | None = None

    def serve(self, stop: Stop) -> JobResult:
        asked = False
        while True:
            if self._head.ended:
                return self._head.ended
            if self._head.lost:
                return JobResult(ClusterError.exit_code, self._head.lost)
            if stop.since is not None:
                if not self._head.ray or time.monotonic() - stop.since > self._options.grace:
                    return JobResult(Interrupted.exit_code, "told to stop")
                if not asked:
                    asked = True
                    self._tell(f"told to stop; leaving within {self._options.grace:g} s")
            try:
                self._ensure_ray()
            except ClusterError as error:
                return JobResult(error.exit_code, str(error))
            time.sleep(_TICK)

    def stop(self) -> None:
        if self._node:
            self._node.close()
            self._node = None

    def _ensure_ray(self) -> None:
        """Starts Ray once the head has; restarts it if it ends: Ray gives up a node that was cut off for a while."""
        if not self._head.ray or not self._head.connected:
            return
        if not self._node:
            command = worker_command(self._name, self._head.address, self._head.ray, self._options)
            self._node = RayNode(self._name, command, self._environment)
        elif output := self._node.restart_if_ended():
            self._tell(f"Ray ended and was restarted; its last output: {output}")

    def _tell(self, text: str) -> None:
        self._log(text)
        self._head.note(text)
