"""The head: starts Ray, waits for the workers, runs the command, and sends them its result.

While the command runs, signals are forwarded to it, lost hosts are logged, and it is stopped if Ray ends.
"""

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from dojang.cluster.bootstrap.messages import job_secret
from dojang.cluster.bootstrap.network import free_port, own_address
from dojang.cluster.bootstrap.options import JobResult, Options
from dojang.cluster.bootstrap.prometheus_config import write_scrape_config
from dojang.cluster.bootstrap.ray_node import RayNode, head_command, ray_environment
from dojang.cluster.bootstrap.rendezvous import Rendezvous
from dojang.cluster.bootstrap.sagemaker_env import failure_file
from dojang.cluster.bootstrap.stop_signals import Stop
from dojang.cluster.bootstrap.supervised_process import SupervisedProcess
from dojang.cluster.bootstrap.topology import Topology
from dojang.cluster.bootstrap.wait_for_nodes import NodeWait
from dojang.core.errors import ClusterError, DojangError, Interrupted

__all__ = ["run_head"]

_PORT = 6379
_TICK = 0.2
_REASON = 1024  # SageMaker shows at most this many characters of a failure


def run_head(
    topology: Topology, options: Options, command: Sequence[str], stop: Stop, log: Callable[[str], None]
) -> JobResult:
    """Runs the job from start to end. Once the command has started, the exit code is the command's."""
    deadline = time.monotonic() + options.timeout
    environment = ray_environment(topology.interface)
    address = own_address(topology.this_host, topology.workers, topology.interface, deadline, stop)
    port = options.port or (_PORT if topology.workers else free_port())
    start = head_command(topology.this_host, address, port, options)
    rendezvous_port = options.rendezvous_port if topology.workers else 0
    rendezvous = Rendezvous(
        address, rendezvous_port, topology.workers, job_secret(topology.hosts), log, options.reconnect
    )
    end = JobResult(ClusterError.exit_code, f"the bootstrap process on {topology.head} crashed")
    with closing(rendezvous), closing(RayNode(topology.this_host, start, environment)) as node:
        job = _Job(topology, options, stop, log, rendezvous, node, environment | {"RAY_ADDRESS": f"{address}:{port}"})
        try:
            job.wait_for_nodes(deadline)
            end = job.run(command)
        except DojangError as error:
            end = JobResult(error.exit_code, str(error))
        finally:
            rendezvous.end(end.code, end.text)
    return end


@dataclass
class _Job:
    """State of the head once Ray is starting."""

    topology: Topology
    options: Options
    stop: Stop
    log: Callable[[str], None]
    rendezvous: Rendezvous
    node: RayNode
    environment: dict[str, str]
    kill_at: float = float("inf")
    """When to kill the command, if it has not ended by then."""
    ray_ended: bool = False

    def wait_for_nodes(self, deadline: float) -> None:
        ray, options = self.environment["RAY_ADDRESS"], self.options
        node_wait = NodeWait(
            self.topology.head, ray, self.rendezvous, self.node, self.stop, self.log, options.timeout, deadline
        )
        addresses = node_wait.wait(self.environment)
        self.log(f"all {len(addresses)} hosts joined; Ray runs at {ray}")
        if options.prometheus:
            try:
                write_scrape_config(options.prometheus, addresses, options.metrics_port)
            except OSError as error:
                self.log(f"{options.prometheus} cannot be written: {error.strerror}; continuing without it")

    def run(self, command: Sequence[str]) -> JobResult:
        with SupervisedProcess(command, self.environment) as process:
            code = self._wait_for(process)
        if code == 0 and self.options.wait_shutdown:
            self.log(f"done; the cluster stays up for {self.options.wait_shutdown:g} s (--wait-shutdown)")
            until = time.monotonic() + self.options.wait_shutdown
            while time.monotonic() < until and self.stop.since is None and self.node.running:
                self.rendezvous.report_lost_hosts()
                self.stop.wait(_TICK)
        return JobResult(code, _failure_text(self.topology, command, code) if code else "")

    def _wait_for(self, process: SupervisedProcess) -> int:
        grace = self.options.grace
        while (code := process.poll()) is None:
            for number in self.stop.take():
                self.log(f"{signal.Signals(number).name}: forwarded to the command, which has {grace:g} s to end")
                self._signal(process, number)
            if not self.ray_ended and not self.node.running:  # without Ray the command would wait for ever
                self.ray_ended = True
                self.log(f"Ray ended on this host; stopping the command. Ray's last output: {self.node.last_output()}")
                self._signal(process, signal.SIGTERM)
            self.rendezvous.report_lost_hosts()
            if time.monotonic() > self.kill_at:
                self.log(f"the command did not end within {grace:g} s after the signal; killing it")
                return process.kill()
            time.sleep(_TICK)
        return code

    def _signal(self, process: SupervisedProcess, number: int) -> None:
        process.signal(number)
        self.kill_at = min(self.kill_at, time.monotonic() + self.options.grace)


def _failure_text(topology: Topology, command: Sequence[str], code: int) -> str:
    """Describes a failed command, by its own failure file if it wrote one. Leaves out arguments: they may be secret."""
    written = failure_file(os.environ)
    if written and written.is_file():
        text = written.read_text(errors="replace").strip()[:_REASON]
        if text:
            return text
    names = {128 + each.value: each.name for each in signal.Signals} | {Interrupted.exit_code: "interrupted"}
    meaning = f" ({names[code]})" if code in names else ""
    return f"{Path(command[0]).name} on {topology.head} ended with exit code {code}{meaning}"
