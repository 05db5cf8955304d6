"""Connects to the Ray cluster; reserves placement groups; lists nodes and spare CPUs."""

import asyncio
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from dojang.cluster.runtime_config import RayConfig
from dojang.core.errors import ClusterError

__all__ = [
    "NODE_TIMEOUT_S",
    "Node",
    "Placement",
    "alive_node_ids",
    "connect",
    "gpus_each",
    "is_placed",
    "node_is_gone",
    "nodes",
    "refuse_too_many",
    "release",
    "request",
    "reserve",
    "spare_cpus",
    "why_unplaced",
]

logger = logging.getLogger(__name__)
_WARN_S = 10.0
"""Seconds to wait for a placement before a warning, and for a cluster to be reachable."""
_SLICE_S = 1.0
"""Seconds of each wait: Ray blocks signals while it waits."""
NODE_TIMEOUT_S = 75.0
"""Seconds that Ray may take to notice a dead node: five health checks of ten seconds each, and some margin."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Reserved resources for one process: a bundle of a placement group."""

    group: Any
    bundle: int
    cpus: float
    gpus: float


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster."""

    id: str
    address: str
    cpus: float
    gpus: float


_reserved: list[Placement] = []
_had_gpus = False
"""Whether the cluster ever had GPUs: a run that lost them waits for them instead of continuing on CPUs."""
_local_cluster = False
"""Whether this run started the cluster: then no further node will join."""
_seen: tuple[float, frozenset[str]] = (float("-inf"), frozenset())
_ALIVE_CACHE_S = 2.0


def connect(config: RayConfig) -> None:
    """Connects to the cluster, or starts a local one. If already connected, releases all placements of a failed run."""
    global _local_cluster
    if ray.is_initialized():
        release(list(_reserved))
        return
    address = config.address or os.environ.get("RAY_ADDRESS", "")
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "150")  # its 30 s are too little on a busy machine
    os.environ.setdefault("RAY_worker_niceness", "0")  # for a local cluster: Ray's 15 would starve trainers
    try:
        if address:
            _check_reachable(address)
            ray.init(address=address, log_to_driver=True, configure_logging=False)
        else:  # without an address Ray would join any cluster that runs on this machine
            ray.init(address="local", include_dashboard=False, log_to_driver=True, configure_logging=False)
            _local_cluster = True
    except Exception as error:  # Ray raises many kinds, with long texts
        first, *_ = str(error).strip().splitlines() or [type(error).__name__]
        where = f"cannot connect to the Ray cluster at {address}" if address else "cannot start Ray here"
        raise ClusterError(f"{where}: {first}; see runtime.address, RAY_ADDRESS and RAY_AUTH_TOKEN") from error


def _check_reachable(address: str) -> None:
    """Raises OSError if the address does not accept connections: Ray itself would retry for minutes without a reason.
    Skips symbolic addresses (auto)."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return
    deadline = time.monotonic() + _WARN_S
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_WARN_S).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)
        else:
            return


def nodes() -> list[Node]:
    """Live nodes of the cluster."""
    return [
        Node(
            each["NodeID"],
            each["NodeManagerAddress"],
            each["Resources"].get("CPU", 0.0),
            each["Resources"].get("GPU", 0.0),
        )
        for each in ray.nodes()
        if each["Alive"]
    ]


def alive_node_ids() -> frozenset[str]:
    """IDs of the live nodes, cached for a moment because many callers ask at once."""
    global _seen
    at, found = _seen
    if time.monotonic() - at > _ALIVE_CACHE_S:
        found = frozenset(node.id for node in nodes())
        _seen = time.monotonic(), found
    return found


async def node_is_gone(node: Node) -> bool:
    """Reports whether a node is gone; waits as long as Ray may take to notice."""
    deadline = time.monotonic() + NODE_TIMEOUT_S
    while node.id in await asyncio.to_thread(alive_node_ids):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_ALIVE_CACHE_S)
    return True


def gpus_each(config: RayConfig, device: str) -> float:
    """Number of GPUs of a trainer or engine; `device` is model.device."""
    if device == "cpu":
        return 0.0
    if config.gpus is not None:
        return config.gpus
    global _had_gpus
    _had_gpus = _had_gpus or any(node.gpus for node in nodes())
    return float(_had_gpus)


def reserve(what: str, count: int, *, cpus: float, gpus: float, strategy: str, timeout_s: float) -> list[Placement]:
    """Reserves resources for `count` processes. Raises ClusterError with the free resources after the timeout."""
    bundle = _bundle(cpus, gpus)
    wanted = f"{what} need {count} x ({_format_resources(bundle)})"
    remedy = "see runtime.trainers, runtime.engines, runtime.cpus and runtime.gpus"
    refuse_too_many(what, count, cpus=cpus, gpus=gpus, remedy=remedy)
    group = placement_group([bundle] * count, strategy=strategy)
    if not _ready(group, min(_WARN_S, timeout_s)):
        logger.warning("waiting for resources in the cluster: %s; %s", wanted, _free_resources())
        if not _ready(group, timeout_s):
            remove_placement_group(group)
            raise ClusterError(
                f"{wanted}; the cluster did not have them within {timeout_s:g} s ({_free_resources()}); {remedy}"
            )
    placements = [Placement(group, at, cpus, gpus) for at in range(count)]
    _reserved.extend(placements)
    return placements


def refuse_too_many(what: str, count: int, *, cpus: float, gpus: float, remedy: str) -> None:
    """Raises ClusterError if this run started the cluster, which no node will join, and it has too few resources."""
    if _local_cluster and not _can_hold(cpus, gpus, count):
        wanted = f"{what} need {count} x ({_format_resources(_bundle(cpus, gpus))})"
        raise ClusterError(f"{wanted}, more than this machine has ({_free_resources()}); {remedy}")


def request(*, cpus: float, gpus: float) -> Placement:
    """Requests resources for one process without waiting: Ray reserves them as soon as a node has them, also one that
    joins later."""
    placement = Placement(placement_group([_bundle(cpus, gpus)], strategy="PACK"), 0, cpus, gpus)
    _reserved.append(placement)
    return placement


def is_placed(placement: Placement) -> bool:
    """Reports whether Ray has reserved the resources on a live node."""
    return bool(placement_group_table(placement.group).get("state") == "CREATED")


def why_unplaced(cpus: float, gpus: float) -> str:
    """Says why a process with these resources cannot be placed now."""
    wanted, there = _format_resources(_bundle(cpus, gpus)), nodes()
    if not any(node.cpus >= cpus and node.gpus >= gpus for node in there):
        most = dict.fromkeys(_format_resources({"CPU": node.cpus, "GPU": node.gpus}) for node in there)
        return f"each needs {wanted} on one node, and the nodes have {'; '.join(most)}"
    return f"each needs {wanted} on one node, and all are in use ({_free_resources()})"


def _bundle(cpus: float, gpus: float) -> dict[str, float]:
    return {"CPU": cpus, "GPU": gpus} if gpus else {"CPU": cpus}


def _ready(group: Any, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not group.wait(_SLICE_S):
        if time.monotonic() > deadline:
            return False
    return True


def _can_hold(cpus: float, gpus: float, count: int) -> bool:
    """Reports whether the nodes have the resources, besides those reserved."""
    there = nodes()
    cpus_left = sum(node.cpus for node in there) - sum(each.cpus for each in _reserved)
    gpus_left = sum(node.gpus for node in there) - sum(each.gpus for each in _reserved)
    return cpus * count <= cpus_left and gpus * count <= gpus_left


def release(placements: Sequence[Placement]) -> None:
    """Releases placements; Ray ends processes that still run there."""
    for group in {each.group.id: each.group for each in placements if each in _reserved}.values():
        remove_placement_group(group)
    _reserved[:] = [each for each in _reserved if each not in placements]


def spare_cpus() -> list[tuple[Node, int]]:
    """CPUs that this run's trainers and engines leave free on each node; at least one somewhere.

    Raises ClusterError if no node has a CPU.
    """
    taken: Counter[str] = Counter()
    for group in {each.group.id: each.group for each in _reserved}.values():
        table = placement_group_table(group)
        for at, node in table["bundles_to_node_id"].items():
            taken[node] += table["bundles"][at].get("CPU", 0.0)
    there = nodes()
    found = {node: max(0, int(node.cpus - taken[node.id])) for node in there}
    if not any(found.values()):
        widest = max(there, key=lambda node: node.cpus, default=None)
        if widest is None or not widest.cpus:
            raise ClusterError(f"no node of the cluster has a CPU for judging ({len(there)} nodes)")
        found[widest] = 1
    return list(found.items())


def _free_resources() -> str:
    free = ray.available_resources()
    return f"free: {_format_resources({kind: free.get(kind, 0.0) for kind in ('CPU', 'GPU')})}, on {len(nodes())} nodes"


def _format_resources(resources: dict[str, float]) -> str:
    return ", ".join(f"{amount:g} {kind}" for kind, amount in resources.items())
