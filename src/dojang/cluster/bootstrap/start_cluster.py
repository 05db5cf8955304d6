"""`dojang launch ray-cluster`: run identically on every host of a job, it finds its role and ends as the job does."""

import os
import sys
from collections.abc import Sequence

from dojang.cluster.bootstrap.head import lead
from dojang.cluster.bootstrap.options import End, Options
from dojang.cluster.bootstrap.sagemaker_env import failure_file
from dojang.cluster.bootstrap.stop_signals import Stop
from dojang.cluster.bootstrap.topology import Roster, discover
from dojang.cluster.bootstrap.worker import serve
from dojang.core.errors import ConfigError, DojangError

__all__ = ["ray_cluster"]

_FOR_WORKERS = range(10002, 20000)


def ray_cluster(command: Sequence[str], hosts: Sequence[str], host: str, head_group: str, options: Options) -> int:
    """The exit code for this host."""
    stop = Stop()
    stop.install()
    try:
        roster = discover(hosts, host, head_group)
        _check(roster, options, command)
        end = _take_part(roster, options, command, stop)
    except DojangError as error:
        _record(str(error))
        raise
    except Exception as error:  # a mistake of ours is a reason, too
        _record(f"{type(error).__name__}: {error}")
        raise
    if end.code:
        _say(end.text)
        _record(end.text)
    return end.code


def _check(roster: Roster, options: Options, command: Sequence[str]) -> None:
    if sys.platform != "linux":
        raise ConfigError("clusters are for Linux: elsewhere nothing could end what Ray leaves behind")
    if not command:
        raise ConfigError("no command: what is to run on the head comes after --, as in `-- dojang train RECIPE`")
    if options.coordinator and not roster.workers:
        raise ConfigError("--coordinator keeps work off the head, but there is no other host to do it")
    _check_ports(options)
    if options.prometheus and not options.metrics_port:
        raise ConfigError("--prometheus needs to know where figures are: give --metrics-port a number")


def _check_ports(options: Options) -> None:
    ports = {"--port": options.port or 0, "--muster-port": options.muster_port, "--metrics-port": options.metrics_port}
    ports |= {"--dashboard-port": options.dashboard_port} if options.dashboard else {}
    chosen = [port for port in ports.values() if port]
    for name, port in ports.items():
        if port in _FOR_WORKERS:
            raise ConfigError(f"{name} {port}: Ray keeps 10002 to 19999 for its workers; choose another port")
        if port and chosen.count(port) > 1:
            raise ConfigError(f"{name} {port}: another one of {', '.join(ports)} is the same; choose another port")


def _take_part(roster: Roster, options: Options, command: Sequence[str], stop: Stop) -> End:
    if not roster.leads:
        _say(f"{roster.me} is a worker of {roster.head} ({roster.source})")
        return serve(roster, options, stop, _say)
    others = f"; waiting for {', '.join(roster.workers)}" if roster.workers else ""
    _say(f"{roster.me} is the head of {len(roster.hosts)} ({roster.source}){others}")
    return lead(roster, options, command, stop, _say)


def _say(line: str) -> None:
    sys.stderr.write(f"dojang: {line}\n")
    sys.stderr.flush()


def _record(text: str) -> None:
    """For SageMaker. What the command wrote says more."""
    path = failure_file(os.environ)
    if path and not path.exists():
        try:
            path.write_text(f"{text}\n")
        except OSError as error:
            _say(f"{path} cannot be written: {error.strerror}")
