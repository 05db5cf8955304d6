"""The cluster, and places in it."""

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
    "NOTICE_S",
    "Node",
    "Place",
    "alive",
    "connect",
    "give_back",
    "gone",
    "gpus_each",
    "nodes",
    "reserve",
    "spare",
]

logger = logging.getLogger(__name__)
_WORD_S = 10.0
"""How long to wait for places before saying so; and for a cluster to be there."""
_SLICE_S = 1.0
"""Ray hears no signals while it waits, so it waits for so long at a time."""
NOTICE_S = 75.0
"""How long Ray may take to notice that a machine is gone: five questions, each of which has ten seconds."""


@dataclass(frozen=True, slots=True)
class Place:
    """Room for one process."""

    group: Any
    bundle: int
    cpus: float
    gpus: float


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the cluster."""

    id: str
    address: str
    cpus: float
    gpus: float


_reserved: list[Place] = []
_had_gpus = False
"""Whether the cluster had any: if it has lost them, that is no reason for a run to go on without."""
_alone = False
"""Whether the cluster was begun here, for this run: then no machine will join it."""
_seen: tuple[float, frozenset[str]] = (float("-inf"), frozenset())
_MOMENT_S = 2.0


def connect(config: RayConfig) -> None:
    """Join the cluster, or begin one of this machine alone. If that was done already, all places are given back: those
    who had them have failed."""
    global _alone
    if ray.is_initialized():
        give_back(list(_reserved))
        return
    address = config.address or os.environ.get("RAY_ADDRESS", "")
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "150")  # on a busy machine its 30 are not enough
    os.environ.setdefault("RAY_worker_niceness", "0")  # of a cluster begun here: its 15 would starve trainers
    try:
        if address:
            _greet(address)
            ray.init(address=address, log_to_driver=True, configure_logging=False)
        else:  # without a word Ray would join whatever cluster somebody has started on this machine
            ray.init(address="local", include_dashboard=False, log_to_driver=True, configure_logging=False)
            _alone = True
    except Exception as error:  # of many kinds, with many lines
        first, *_ = str(error).strip().splitlines() or [type(error).__name__]
        where = f"the Ray cluster at {address} cannot be joined" if address else "Ray cannot be started here"
        raise ClusterError(f"{where}: {first}; see runtime.address, RAY_ADDRESS and RAY_AUTH_TOKEN") from error


def _greet(address: str) -> None:
    """OSError if nobody listens there: Ray itself asks for minutes, and does not say what is wrong. Addresses that are
    words (auto) are Ray's to understand."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return
    deadline = time.monotonic() + _WORD_S
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_WORD_S).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)
        else:
            return


def nodes() -> list[Node]:
    """Those that are alive."""
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


def alive() -> frozenset[str]:
    """Their ids, as they were a moment ago: many may ask at the same time."""
    global _seen
    at, found = _seen
    if time.monotonic() - at > _MOMENT_S:
        found = frozenset(node.id for node in nodes())
        _seen = time.monotonic(), found
    return found


async def gone(node: Node) -> bool:
    """Whether a machine that somebody was lost with is; Ray may take a while to notice."""
    deadline = time.monotonic() + NOTICE_S
    while node.id in await asyncio.to_thread(alive):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_MOMENT_S)
    return True


def gpus_each(config: RayConfig, device: str) -> float:
    """How many GPUs a trainer or engine gets; `device` is model.device."""
    if device == "cpu":
        return 0.0
    if config.gpus is not None:
        return config.gpus
    global _had_gpus
    _had_gpus = _had_gpus or any(node.gpus for node in nodes())
    return float(_had_gpus)


def reserve(what: str, count: int, *, cpus: float, gpus: float, strategy: str, timeout_s: float) -> list[Place]:
    """Room for so many processes. ClusterError if there is none in time, with what there is."""
    bundle = {"CPU": cpus, "GPU": gpus} if gpus else {"CPU": cpus}
    wanted = f"{what} need {count} x ({_words(bundle)})"
    remedy = "see runtime.trainers, runtime.engines, runtime.cpus and runtime.gpus"
    if _alone and not _can_hold(cpus, gpus, count):
        raise ClusterError(f"{wanted}, and this machine has not got that ({_there()}); {remedy}")
    group = placement_group([bundle] * count, strategy=strategy)
    if not _ready(group, min(_WORD_S, timeout_s)):
        logger.warning("waiting for room in the cluster: %s; %s", wanted, _there())
        if not _ready(group, timeout_s):
            remove_placement_group(group)
            raise ClusterError(
                f"{wanted}, and the cluster had no room for that within {timeout_s:g} s ({_there()}); {remedy}"
            )
    places = [Place(group, at, cpus, gpus) for at in range(count)]
    _reserved.extend(places)
    return places


def _ready(group: Any, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not group.wait(_SLICE_S):
        if time.monotonic() > deadline:
            return False
    return True


def _can_hold(cpus: float, gpus: float, count: int) -> bool:
    """Whether the machines there are could ever, beside what is reserved."""
    there = nodes()
    cpus_left = sum(node.cpus for node in there) - sum(each.cpus for each in _reserved)
    gpus_left = sum(node.gpus for node in there) - sum(each.gpus for each in _reserved)
    return cpus * count <= cpus_left and gpus * count <= gpus_left


def give_back(places: Sequence[Place]) -> None:
    """Processes that are still there end."""
    for group in {each.group.id: each.group for each in places if each in _reserved}.values():
        remove_placement_group(group)
    _reserved[:] = [each for each in _reserved if each not in places]


def spare() -> list[tuple[Node, int]]:
    """How many processors trainers and engines of this run leave on each machine; one somewhere in any case.
    ClusterError if no machine has any."""
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
            raise ClusterError(f"no machine of the cluster has a processor to judge with ({len(there)} are there)")
        found[widest] = 1
    return list(found.items())


def _there() -> str:
    free = ray.available_resources()
    return f"free: {_words({kind: free.get(kind, 0.0) for kind in ('CPU', 'GPU')})}, on {len(nodes())} machines"


def _words(resources: dict[str, float]) -> str:
    return ", ".join(f"{amount:g} {kind}" for kind, amount in resources.items())
