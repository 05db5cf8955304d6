"""What the head does: gather the hosts, run the command, tell everybody how it ended."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from dojang.cluster.bootstrap.messages import job_secret
from dojang.cluster.bootstrap.network import free_port, own_address
from dojang.cluster.bootstrap.options import End, Options
from dojang.cluster.bootstrap.prometheus_config import write_scrape_config
from dojang.cluster.bootstrap.ray_node import RayNode, head_command, ray_environment
from dojang.cluster.bootstrap.rendezvous import Muster
from dojang.cluster.bootstrap.run_command import Running
from dojang.cluster.bootstrap.sagemaker_env import failure_file
from dojang.cluster.bootstrap.stop_signals import Stop
from dojang.cluster.bootstrap.topology import Roster
from dojang.cluster.bootstrap.wait_for_nodes import Gathering
from dojang.core.errors import ClusterError, DojangError, Interrupted

__all__ = ["lead"]

_PORT = 6379
_REASON = 1024  # SageMaker shows no more of a failure


def lead(roster: Roster, options: Options, command: Sequence[str], stop: Stop, say: Callable[[str], None]) -> End:
    """From the first host to the last. Once the command has begun, the exit code is the command's."""
    deadline = time.monotonic() + options.timeout
    environment = ray_environment(roster.interface)
    address = own_address(roster.me, roster.workers, roster.interface, deadline, stop)
    port = options.port or (_PORT if roster.workers else free_port())
    start = head_command(roster.me, address, port, options)
    muster_port = options.muster_port if roster.workers else 0
    muster = Muster(address, muster_port, roster.workers, job_secret(roster.hosts), say, options.patience)
    end = End(ClusterError.exit_code, f"the bootstrap process of {roster.head} broke down")
    with closing(muster), closing(RayNode(roster.me, start, environment)) as node:
        job = _Job(roster, options, stop, say, muster, node, environment | {"RAY_ADDRESS": f"{address}:{port}"})
        try:
            job.gather(deadline)
            end = job.run(command)
        except DojangError as error:
            end = End(error.exit_code, str(error))
        finally:
            muster.end(end.code, end.text)
    return end


@dataclass(frozen=True)
class _Job:
    """What the head has at hand once Ray is starting."""

    roster: Roster
    options: Options
    stop: Stop
    say: Callable[[str], None]
    muster: Muster
    node: RayNode
    environment: dict[str, str]

    def gather(self, deadline: float) -> None:
        ray, options = self.environment["RAY_ADDRESS"], self.options
        gathering = Gathering(self.roster.head, ray, self.muster, self.node, self.stop, self.say)
        addresses = gathering.wait(self.environment, options.timeout, deadline)
        self.say(f"all {len(addresses)} hosts are there; Ray is at {ray}")
        if options.prometheus:
            try:
                write_scrape_config(options.prometheus, addresses, options.metrics_port)
            except OSError as error:
                self.say(f"{options.prometheus} cannot be written: {error.strerror}; going on without")

    def run(self, command: Sequence[str]) -> End:
        running = Running(self.muster, self.node, self.stop, self.say, self.options.grace)
        code = running.run(command, self.environment)
        if code == 0 and self.options.wait_shutdown:
            self.say(f"done; the cluster stays up for {self.options.wait_shutdown:g} s (--wait-shutdown)")
            running.linger(self.options.wait_shutdown)
        return End(code, _account(self.roster, command, code) if code else "")


def _account(roster: Roster, command: Sequence[str], code: int) -> str:
    """What to say of a command that failed: what it wrote itself, if anything. Its arguments may hold secrets."""
    written = failure_file(os.environ)
    if written and written.is_file():
        text = written.read_text(errors="replace").strip()[:_REASON]
        if text:
            return text
    names = {128 + each.value: each.name for each in signal.Signals} | {Interrupted.exit_code: "interrupted"}
    meaning = f" ({names[code]})" if code in names else ""
    return f"{Path(command[0]).name} on {roster.head} ended with exit code {code}{meaning}"
