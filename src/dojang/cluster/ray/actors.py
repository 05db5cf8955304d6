"""Ray actors that hold one object each, and calls to them.

A call raises what the object raises. If the process is gone or unreachable it raises `ActorLost`, whatever Ray's error
was; the caller decides whether to retry elsewhere. Ray does not always report a loss at once: a dead node, or a
connection that broke while idle. So a waiting caller polls the list of nodes, and sends the actor another call.
"""

import asyncio
import inspect
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from dojang.cluster.ray.placement import Node, Placement, alive_node_ids

__all__ = ["Actor", "ActorLost", "Host", "await_result", "gather", "start_actor", "start_actor_on"]

_POLL_S = 5.0
"""Seconds between checks whether the node of an unanswered call is alive."""
_MAX_CONCURRENCY = 10_000
"""Concurrent calls that Ray lets an actor have; its object limits how many it works on."""


class ActorLost(RuntimeError):
    """The actor's process is gone or unreachable."""


class Host:
    """The actor class: holds one object and forwards calls to it."""

    def __init__(self) -> None:
        self._object: Any = None

    async def make(self, factory: Callable[..., Any], *arguments: Any) -> None:
        self._object = factory(*arguments)

    async def call(self, method: str, *arguments: Any) -> Any:
        found = getattr(self._object, method)(*arguments)
        return await found if inspect.isawaitable(found) else found

    async def node(self) -> str:
        return str(ray.get_runtime_context().get_node_id())

    async def address(self) -> tuple[str, int]:
        """Address of this node and a free port, for a process group's rendezvous."""
        with socket.socket() as one:
            one.bind(("", 0))
            return ray.util.get_node_ip_address(), int(one.getsockname()[1])


class Actor:
    """Handle of an actor."""

    def __init__(self, handle: Any, node: str | None = None) -> None:
        self._handle = handle
        self._node = node
        """ID of its node, once known."""
        self._probe: Any = None
        """Reference of the last probe call."""

    def make(self, factory: Callable[..., Any], *arguments: Any) -> Any:
        """Starts making the actor's object; returns an object reference. Ray resolves arguments that are references."""
        return self._handle.make.remote(factory, *arguments)

    def address(self) -> Any:
        return self._handle.address.remote()

    def submit(self, method: str, *arguments: Any) -> Any:
        """Starts a call; returns an object reference."""
        return self._handle.call.remote(method, *arguments)

    async def call(self, method: str, *arguments: Any) -> Any:
        """Calls a method and waits for its result."""
        return await self.wait(self.submit(method, *arguments))

    def resolve_node(self, others: "Sequence[Actor]", timeout_s: float) -> None:
        """Waits until the actor is placed and stores its node; fails if a node of `others` is lost meanwhile."""
        (self._node,) = gather(others, [self._handle.node.remote()], timeout_s)

    async def prepare(self, factory: Callable[..., Any]) -> None:
        """Makes the actor's object and waits for it."""
        self._node = await await_result(self._handle.node.remote())  # returns as soon as the actor is placed
        await self.wait(self.make(factory))

    async def wait(self, asked: Any) -> Any:
        """Waits for a reference, polling whether the actor is alive."""
        waiting = asyncio.ensure_future(await_result(asked))
        try:
            while not (await asyncio.wait({waiting}, timeout=_POLL_S))[0]:
                await asyncio.to_thread(self.check_alive)
            return waiting.result()
        finally:
            waiting.cancel()

    def check_alive(self) -> None:
        """Raises ActorLost if the actor's node is gone. Sends a probe call: if only the connection is broken, Ray
        notices by it, and fails all pending calls."""
        if self._node is not None and self._node not in alive_node_ids():
            raise ActorLost("its node is gone")
        if self._probe is None or ray.wait([self._probe], timeout=0)[0]:
            self._probe = self._handle.node.remote()

    def node_is_gone(self) -> bool:
        """Reports whether the actor's node is gone, or was never known."""
        return self._node is None or self._node not in alive_node_ids()

    def kill(self) -> None:
        """Kills the process at once."""
        ray.kill(self._handle)


def start_actor(placement: Placement, name: str) -> Actor:
    """Starts an actor in a placement group's bundle. `name` is its class name in Ray's lists. It has no object yet."""
    strategy = PlacementGroupSchedulingStrategy(placement.group, placement.bundle)
    return Actor(_start_actor(name, placement.cpus, placement.gpus, strategy))


def start_actor_on(node: Node, name: str) -> Actor:
    """Starts an actor on a node. It reserves no CPUs in Ray, so it never blocks a trainer or an engine."""
    return Actor(_start_actor(name, 0.0, 0.0, NodeAffinitySchedulingStrategy(node.id, soft=False)), node.id)


def _start_actor(name: str, cpus: float, gpus: float, strategy: Any) -> Any:
    options = {
        "num_cpus": cpus,
        "num_gpus": gpus,
        "max_concurrency": _MAX_CONCURRENCY,
        "scheduling_strategy": strategy,
    }
    return ray.remote(type(name, (Host,), {})).options(**options).remote()


async def await_result(asked: Awaitable[Any]) -> Any:
    """Awaits a reference; translates Ray's errors."""
    try:
        return await asked
    except RayError as error:
        raise _translate(error) from error


def gather(actors: Sequence[Actor], asked: Sequence[Any], timeout_s: float) -> list[Any]:
    """Results of all references. Raises the first failure at once: the other actors may wait for the failed one."""
    waiting, deadline = list(asked), time.monotonic() + timeout_s
    try:
        while waiting:
            done, waiting = ray.wait(waiting, timeout=min(_POLL_S, timeout_s))
            if done:
                ray.get(done)
                deadline = time.monotonic() + timeout_s
                continue
            for each in actors:
                each.check_alive()
            if time.monotonic() > deadline:
                raise GetTimeoutError(f"no result within {timeout_s:g} s")
        return list(ray.get(list(asked)))
    except RayError as error:
        raise _translate(error) from error


def _translate(error: RayError) -> Exception:
    if isinstance(error, RayTaskError):
        cause = error.cause
        if not isinstance(cause, RayError):
            return cause if isinstance(cause, Exception) else error
        error = cause  # an argument is lost, with the node that held it
    first, *_ = str(error).strip().splitlines() or [""]
    return ActorLost(f"{type(error).__name__}: {first}")
