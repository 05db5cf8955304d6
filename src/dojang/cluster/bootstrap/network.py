"""Addresses of hosts, and what the libraries that talk between GPUs have to know of the network.

What a user has set already is left as it is.
"""

import fcntl
import os
import socket
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from dojang.cluster.bootstrap.stop_signals import Stop
from dojang.core.errors import ClusterError, Interrupted

__all__ = ["free_port", "network_settings", "own_address", "resolve"]

_SIOCGIFADDR = 0x8915
_NETWORKS = Path("/sys/class/net")
_DEVICES = Path("/sys/class/infiniband")


def resolve(host: str) -> str:
    """The IPv4 address of a host. OSError if it has none."""
    return socket.gethostbyname(host)


def own_address(me: str, peers: Sequence[str], interface: str, deadline: float, stop: Stop) -> str:
    """The address under which the other hosts reach this one. Their names may take a while to be known."""
    if not peers:
        return "127.0.0.1"
    while True:
        for address in _candidates(me, peers, interface):
            if not address.startswith("127."):
                return address
        if time.monotonic() > deadline:
            raise ClusterError(
                f"{me} has no address that other hosts could reach: its name means this machine only, and none of "
                f"{', '.join(peers)} is known here; check the names, or give addresses with --hosts"
            )
        if stop.wait(1):
            raise Interrupted(
                "told to stop before the name of any other host was known; the command has not been started"
            )


def _candidates(me: str, peers: Sequence[str], interface: str) -> Iterator[str]:
    with suppress(OSError):
        yield _address_of(interface)
    with suppress(OSError):
        yield resolve(me)
    with suppress(OSError):
        yield _address_towards(peers)


def _address_of(interface: str) -> str:
    if not interface:
        raise OSError("not known")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
    return socket.inet_ntoa(answer[20:24])


def _address_towards(peers: Sequence[str]) -> str:
    """Where packets to another host leave from. Nothing is sent."""
    for peer in peers:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((resolve(peer), 9))
            except OSError:
                continue
            return str(probe.getsockname()[0])
    raise OSError("no other host is known")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def network_settings(interface: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables to add to the environment: the interface to use, and EFA where there is such a device."""
    wanted: dict[str, str] = {}
    if interface and (_NETWORKS / interface).exists():
        wanted |= {"NCCL_SOCKET_IFNAME": interface, "GLOO_SOCKET_IFNAME": interface}
    if _has_efa():
        wanted |= {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1", "RDMAV_FORK_SAFE": "1"}
    return {name: value for name, value in wanted.items() if name not in environment}


def _has_efa() -> bool:
    if any((device / "device/driver").resolve().name == "efa" for device in _DEVICES.glob("*")):
        return True
    try:
        asked = subprocess.run(["fi_info", "-p", "efa"], capture_output=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0
