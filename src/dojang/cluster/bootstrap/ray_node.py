"""The Ray node of this host: the command that starts it, the environment it needs, and its processes.

Ray itself is not imported: its processes are started by its own command, and its node list is read by a process of
its own (node_check.py).
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from dojang.cluster.bootstrap.network import free_port, network_settings
from dojang.cluster.bootstrap.options import Options
from dojang.cluster.bootstrap.supervised_process import Kept
from dojang.core.errors import ClusterError, ConfigError

__all__ = ["RayNode", "head_command", "ray_environment", "worker_command"]

_GRACE = 10.0
_ATTEMPTS = 3  # one does not suffice: Ray gives its own start 30 s, which is little where cores are few
_SHORT = 60.0  # Ray that ended sooner has not been up
_TAIL = 4096


def ray_environment(interface: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables for Ray and for all that it starts, which inherits them."""
    wanted = {name: value for name, value in environment.items() if name != "RAY_ADDRESS"}  # another cluster's, or none
    wanted |= network_settings(interface, environment)
    wanted.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    wanted.setdefault("RAY_raylet_start_wait_time_s", "150")  # its 30 s are little where cores are few
    # So long (and not for 20 s) answers are sent again while a link is cut; then the connection is forgotten, which
    # whoever waits for an answer does not learn for minutes. After two of them Ray has given up the node anyway.
    wanted.setdefault("RAY_grpc_keepalive_timeout_ms", "120000")
    token = bool(environment.get("RAY_AUTH_TOKEN") or environment.get("RAY_AUTH_TOKEN_PATH"))
    if not token and environment.get("RAY_AUTH_MODE", "").lower() == "token":
        raise ConfigError(
            "RAY_AUTH_MODE is token, but there is none: set RAY_AUTH_TOKEN to the same value on all hosts"
        )
    # Left to itself Ray takes a token it finds in the home directory, on some hosts, and the others cannot join.
    wanted["RAY_AUTH_MODE"] = "token" if token else "disabled"
    return wanted


def head_command(name: str, address: str, port: int, options: Options) -> list[str]:
    # Ray Client cannot be done without, and is not used: any port but 10001, where another cluster's may be.
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
    """Ray's processes on this host. They end with this process, whichever way it ends."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._name, self._command, self._environment = name, command, environment
        self._failures = 0
        self._begin()

    def _begin(self) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 -- closed with the node
        self._kept = Kept(self._command, self._environment, self._output, _GRACE)

    @property
    def running(self) -> bool:
        return self._kept.poll() is None

    def revive(self) -> str:
        """Start Ray again if it has ended, and return its last words. ClusterError if it keeps ending."""
        if self.running:
            return ""
        words = self.last_words()
        self._failures = self._failures + 1 if self._kept.age < _SHORT else 1
        if self._failures >= _ATTEMPTS:
            raise ClusterError(f"Ray does not stay up on {self._name}; it said: {words}")
        self.close()
        self._begin()
        return words

    def last_words(self) -> str:
        """The end of what it said, in one line: Ray says at length how to use it, and what is wrong comes last."""
        self._output.seek(max(0, self._output.seek(0, os.SEEK_END) - _TAIL))
        lines = [line.strip() for line in self._output.read().decode(errors="replace").splitlines()]
        return " / ".join([line for line in lines if line][-3:])[-600:] or "nothing"

    def close(self) -> None:
        self._kept.stop()
        self._output.close()
