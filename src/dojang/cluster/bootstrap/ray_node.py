"""The Ray node of this host: its start command, environment and processes.

This process does not import Ray: `ray start` starts the node, and a separate process reads the node list
(node_check.py).
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from dojang.cluster.bootstrap.network import free_port, network_settings
from dojang.cluster.bootstrap.options import Options
from dojang.cluster.bootstrap.supervised_process import SupervisedProcess
from dojang.core.errors import ClusterError, ConfigError

__all__ = ["RayNode", "head_command", "ray_environment", "worker_command"]

_GRACE = 10.0
_MAX_STARTS = 3  # one is not enough: Ray allows its own start 30 s, too little on hosts with few cores
_SHORT = 60.0  # seconds; Ray that ended sooner failed to start
_TAIL = 4096


def ray_environment(interface: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Environment variables for Ray and the processes it starts, which inherit them."""
    wanted = {name: value for name, value in environment.items() if name != "RAY_ADDRESS"}  # of another cluster
    wanted |= network_settings(interface, environment)
    wanted.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    wanted.setdefault("RAY_raylet_start_wait_time_s", "150")  # its 30 s are too little on hosts with few cores
    # gRPC keeps retrying for this long (not 20 s) while a link is cut; then it drops the connection, which a waiting
    # caller does not learn for minutes. After two minutes Ray has given up the node anyway.
    wanted.setdefault("RAY_grpc_keepalive_timeout_ms", "120000")
    token = bool(environment.get("RAY_AUTH_TOKEN") or environment.get("RAY_AUTH_TOKEN_PATH"))
    if not token and environment.get("RAY_AUTH_MODE", "").lower() == "token":
        raise ConfigError(
            "RAY_AUTH_MODE is token, but no token is set: set RAY_AUTH_TOKEN to the same value on all hosts"
        )
    # By default Ray uses a token it finds in a home directory; hosts without that file could not join.
    wanted["RAY_AUTH_MODE"] = "token" if token else "disabled"
    return wanted


def head_command(name: str, address: str, port: int, options: Options) -> list[str]:
    # Ray Client cannot be disabled and is not used: any port but 10001, which another cluster may use.
    command = [*_start(name, address, options), "--head", f"--port={port}", f"--ray-client-server-port={free_port()}"]
    command.append(f"--include-dashboard={str(options.dashboard).lower()}")
    if options.dashboard:
        command += [f"--dashboard-host={options.dashboard_host}", f"--dashboard-port={options.dashboard_port}"]
    return [*command, "--num-cpus=0", "--num-gpus=0"] if options.coordinator else command


def worker_command(name: str, address: str, ray: str, options: Options) -> list[str]:
    return [*_start(name, address, options), f"--address={ray}"]


def _start(name: str, address: str, options: Options) -> list[str]:
    beside = Path(sys.executable).with_name("ray")
    ray = str(beside) if beside.is_file() else shutil.which("ray")
    if not ray:
        raise ConfigError("Ray is not installed on this host: pip install 'dojang[ray]'")
    ports = [f"--metrics-export-port={options.metrics_port}"] if options.metrics_port else []
    who = [f"--node-name={name}", f"--node-ip-address={address}"]
    return [ray, "start", "--block", "--log-style=record", "--log-color=false", *who, *ports]


class RayNode:
    """Ray's processes on this host. They end with this process, even if it is killed."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._name, self._command, self._environment = name, command, environment
        self._failures = 0
        self._start_process()

    def _start_process(self) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 -- closed with the node
        self._process = SupervisedProcess(self._command, self._environment, self._output, _GRACE)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def restart_if_ended(self) -> str:
        """Restarts Ray if it has ended, and returns its last output. Raises ClusterError if it keeps ending."""
        if self.running:
            return ""
        output = self.last_output()
        self._failures = self._failures + 1 if self._process.age_s < _SHORT else 1
        if self._failures >= _MAX_STARTS:
            raise ClusterError(f"Ray does not stay up on {self._name}; its last output: {output}")
        self.close()
        self._start_process()
        return output

    def last_output(self) -> str:
        """Last lines of Ray's output, joined: Ray first prints long usage hints, and errors come last."""
        self._output.seek(max(0, self._output.seek(0, os.SEEK_END) - _TAIL))
        lines = [line.strip() for line in self._output.read().decode(errors="replace").splitlines()]
        return " / ".join([line for line in lines if line][-3:])[-600:] or "nothing"

    def close(self) -> None:
        self._process.stop()
        self._output.close()
