"""Host addresses, free ports, and network variables for NCCL, Gloo and EFA.

Variables that the user has set stay as they are.
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

__all__ = ["free_port", "network_settings", "own_address"]

_SIOCGIFADDR = 0x8915
_NETWORKS = Path("/sys/class/net")
_DEVICES = Path("/sys/class/infiniband")


def own_address(this_host: str, peers: Sequence[str], interface: str, deadline: float, stop: Stop) -> str:
    """Address at which the other hosts reach this one. Waits until a name resolves, up to the deadline."""
    if not peers:
        return "127.0.0.1"
    while True:
        for address in _candidates(this_host, peers, interface):
            if not address.startswith("127."):
                return address
        if time.monotonic() > deadline:
            raise ClusterError(
                f"{this_host} has no address that other hosts could reach: its name resolves to a loopback address, "
                f"and none of {', '.join(peers)} resolves here; check the names, or give addresses with --hosts"
            )
        if stop.wait(1):
            raise Interrupted("told to stop before the name of any other host resolved; the command was not started")


def _candidates(this_host: str, peers: Sequence[str], interface: str) -> Iterator[str]:
    with suppress(OSError):
        yield _address_of(interface)
    with suppress(OSError):
        yield socket.gethostbyname(this_host)
    with suppress(OSError):
        yield _address_towards(peers)


def _address_of(interface: str) -> str:
    if not interface:
        raise OSError("no interface given")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
    return socket.inet_ntoa(answer[20:24])


def _address_towards(peers: Sequence[str]) -> str:
    """Source address of packets to another host. Sends nothing."""
    for peer in peers:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((socket.gethostbyname(peer), 9))
            except OSError:
                continue
            return str(probe.getsockname()[0])
    raise OSError("no other host resolves")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def network_settings(interface: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables to add to the environment: the network interface, and EFA's settings if the host has an EFA device."""
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
