"""A worker: runs a Ray node until the head reports the end of the job."""

import time
from collections.abc import Callable
from dataclasses import dataclass

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


@dataclass
class _Worker:
    """A worker host and its Ray node."""

    name: str
    head: HeadConnection
    options: Options
    environment: dict[str, str]
    log: Callable[[str], None]
    node: RayNode | None = None

    def serve(self, stop: Stop) -> JobResult:
        asked = False
        while True:
            if self.head.ended:
                return self.head.ended
            if self.head.lost:
                return JobResult(ClusterError.exit_code, self.head.lost)
            if stop.since is not None:
                if not self.head.ray or time.monotonic() - stop.since > self.options.grace:
                    return JobResult(Interrupted.exit_code, "told to stop")
                if not asked:
                    asked = True
                    self._tell(f"told to stop; leaving within {self.options.grace:g} s")
            try:
                self._ensure_ray()
            except ClusterError as error:
                return JobResult(error.exit_code, str(error))
            time.sleep(_TICK)

    def stop(self) -> None:
        if self.node:
            self.node.close()
            self.node = None

    def _ensure_ray(self) -> None:
        """Starts Ray once the head has; restarts it if it ends: Ray gives up a node that was cut off for a while."""
        if not self.head.ray or not self.head.connected:
            return
        if not self.node:
            command = worker_command(self.name, self.head.address, self.head.ray, self.options)
            self.node = RayNode(self.name, command, self.environment)
        elif output := self.node.restart_if_ended():
            self._tell(f"Ray ended and was restarted; its last output: {output}")

    def _tell(self, text: str) -> None:
        self.log(text)
        self.head.note(text)
