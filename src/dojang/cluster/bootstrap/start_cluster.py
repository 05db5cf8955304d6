"""`dojang launch ray-cluster`: runs on every host of a job; each finds its role and returns the job's exit code."""

import os
import sys
from collections.abc import Sequence

from dojang.cluster.bootstrap.head import run_head
from dojang.cluster.bootstrap.options import JobResult, Options
from dojang.cluster.bootstrap.sagemaker_env import failure_file
from dojang.cluster.bootstrap.stop_signals import Stop
from dojang.cluster.bootstrap.topology import Topology, discover
from dojang.cluster.bootstrap.worker import run_worker
from dojang.core.errors import ConfigError, DojangError

__all__ = ["ray_cluster"]

_RAY_WORKER_PORTS = range(10002, 20000)


def ray_cluster(command: Sequence[str], hosts: Sequence[str], host: str, head_group: str, options: Options) -> int:
    """Runs this host's part of the job and returns its exit code."""
    stop = Stop()
    stop.install()
    try:
        topology = discover(hosts, host, head_group)
        _check(topology, options, command)
        end = _run_role(topology, options, command, stop)
    except DojangError as error:
        _record(str(error))
        raise
    except Exception as error:  # a bug here is recorded as the reason as well
        _record(f"{type(error).__name__}: {error}")
        raise
    if end.code:
        _log(end.text)
        _record(end.text)
    return end.code


def _check(topology: Topology, options: Options, command: Sequence[str]) -> None:
    if sys.platform != "linux":
        raise ConfigError("clusters need Linux: elsewhere processes that Ray leaves behind cannot be found and ended")
    if not command:
        raise ConfigError("no command: give the one to run on the head after --, as in `-- dojang train RECIPE`")
    if options.coordinator and not topology.workers:
        raise ConfigError("--coordinator keeps work off the head, but the job has no other host")
    _check_ports(options)
    if options.prometheus and not options.metrics_port:
        raise ConfigError("--prometheus needs a fixed port for Ray's metrics: set --metrics-port")


def _check_ports(options: Options) -> None:
    ports = {
        "--port": options.port or 0,
        "--rendezvous-port": options.rendezvous_port,
        "--metrics-port": options.metrics_port,
    }
    ports |= {"--dashboard-port": options.dashboard_port} if options.dashboard else {}
    chosen = [port for port in ports.values() if port]
    for name, port in ports.items():
        if port in _RAY_WORKER_PORTS:
            raise ConfigError(f"{name} {port}: Ray reserves 10002 to 19999 for its workers; choose another port")
        if port and chosen.count(port) > 1:
            raise ConfigError(f"{name} {port}: the same as another one of {', '.join(ports)}; choose another port")


def _run_role(topology: Topology, options: Options, command: Sequence[str], stop: Stop) -> JobResult:
    if not topology.is_head:
        _log(f"{topology.this_host} is a worker of {topology.head} ({topology.source})")
        return run_worker(topology, options, stop, _log)
    others = f"; waiting for {', '.join(topology.workers)}" if topology.workers else ""
    _log(f"{topology.this_host} is the head of {len(topology.hosts)} ({topology.source}){others}")
    return run_head(topology, options, command, stop, _log)


def _log(line: str) -> None:
    sys.stderr.write(f"dojang: {line}\n")
    sys.stderr.flush()


def _record(text: str) -> None:
    """Writes SageMaker's failure file, unless the command has written one: that says more."""
    path = failure_file(os.environ)
    if path and not path.exists():
        try:
            path.write_text(f"{text}\n")
        except OSError as error:
            _log(f"{path} could not be written: {error.strerror}")
