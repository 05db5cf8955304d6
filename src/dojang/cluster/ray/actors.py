"""Objects in processes of Ray's: made there, asked from here.

What is asked raises what the object raises. If instead the process is gone, or cannot be reached any more, that is
`Lost`, whatever Ray calls it: whoever asked decides whether to ask another. Ray does not always say so at once: of a
machine that is gone, or of a connection that broke while a link was cut and over which nothing more is sent. So
machines are looked at while somebody waits, and whoever does not answer is asked something else.
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

from dojang.cluster.ray.placement import Node, Place, alive

__all__ = ["Actor", "Host", "Lost", "answer", "gather", "spawn", "spawn_at"]

_LOOK_S = 5.0
"""Between two looks at whether the machine of somebody who does not answer is still there."""
_AT_A_TIME = 10_000
"""Requests an actor may have under way: how many it really works on is its object's business."""


class Lost(RuntimeError):
    """A process that is gone, or out of reach."""


class Host:
    """The actor: a process that holds one object."""

    def __init__(self) -> None:
        self._held: Any = None

    async def make(self, factory: Callable[..., Any], *arguments: Any) -> None:
        self._held = factory(*arguments)

    async def do(self, verb: str, *arguments: Any) -> Any:
        found = getattr(self._held, verb)(*arguments)
        return await found if inspect.isawaitable(found) else found

    async def node(self) -> str:
        return str(ray.get_runtime_context().get_node_id())

    async def address(self) -> tuple[str, int]:
        """Where others can meet this process: its node's address, and a port that is free."""
        with socket.socket() as one:
            one.bind(("", 0))
            return ray.util.get_node_ip_address(), int(one.getsockname()[1])


class Actor:
    """Somebody to ask."""

    def __init__(self, handle: Any, node: str | None = None) -> None:
        self._handle = handle
        self._node = node
        """Its machine, once that is known."""
        self._also: Any = None
        """What it was asked besides."""

    def make(self, factory: Callable[..., Any], *arguments: Any) -> Any:
        """Begin to make the object it is to hold; returns what to wait for. Arguments that are references into the
        object store arrive as what lies there."""
        return self._handle.make.remote(factory, *arguments)

    def address(self) -> Any:
        return self._handle.address.remote()

    def begin(self, verb: str, *arguments: Any) -> Any:
        """Ask; returns what to wait for."""
        return self._handle.do.remote(verb, *arguments)

    async def do(self, verb: str, *arguments: Any) -> Any:
        """Ask, and wait."""
        return await self.wait(self.begin(verb, *arguments))

    def locate(self, others: "Sequence[Actor]", timeout_s: float) -> None:
        """Find out where it is, once it has found a place; those of the others that were found are to stay."""
        (self._node,) = gather(others, [self._handle.node.remote()], timeout_s)

    async def prepare(self, factory: Callable[..., Any]) -> None:
        """Have it make the object it is to hold."""
        self._node = await answer(self._handle.node.remote())  # as soon as it has found a place
        await self.wait(self.make(factory))

    async def wait(self, asked: Any) -> Any:
        """What comes of something that it has, or was asked."""
        waiting = asyncio.ensure_future(answer(asked))
        try:
            while not (await asyncio.wait({waiting}, timeout=_LOOK_S))[0]:
                await asyncio.to_thread(self.look)
            return waiting.result()
        finally:
            waiting.cancel()

    def look(self) -> None:
        """Lost if its machine is gone. If only the connection is broken, Ray finds out by what is sent here, and then
        says so of everything that was asked."""
        if self._node is not None and self._node not in alive():
            raise Lost("its machine is gone")
        if self._also is None or ray.wait([self._also], timeout=0)[0]:
            self._also = self._handle.node.remote()

    def kill(self) -> None:
        """The process ends at once."""
        ray.kill(self._handle)


def spawn(place: Place, name: str) -> Actor:
    """A new process there, by which name it is found among others. It does not hold anything yet."""
    return Actor(_spawn(name, place.cpus, place.gpus, PlacementGroupSchedulingStrategy(place.group, place.bundle)))


def spawn_at(node: Node, name: str) -> Actor:
    """A new process on that machine. Ray's books know of no processor it uses, so it is in nobody's way."""
    return Actor(_spawn(name, 0.0, 0.0, NodeAffinitySchedulingStrategy(node.id, soft=False)), node.id)


def _spawn(name: str, cpus: float, gpus: float, strategy: Any) -> Any:
    options = {
        "num_cpus": cpus,
        "num_gpus": gpus,
        "max_concurrency": _AT_A_TIME,
        "scheduling_strategy": strategy,
    }
    return ray.remote(type(name, (Host,), {})).options(**options).remote()


async def answer(asked: Awaitable[Any]) -> Any:
    """What comes of it."""
    try:
        return await asked
    except RayError as error:
        raise _meant(error) from error


def gather(actors: Sequence[Actor], asked: Sequence[Any], timeout_s: float) -> list[Any]:
    """What comes of all that those were asked. As soon as one fails, that is raised: the others may wait for it in
    vain."""
    waiting, deadline = list(asked), time.monotonic() + timeout_s
    try:
        while waiting:
            done, waiting = ray.wait(waiting, timeout=min(_LOOK_S, timeout_s))
            if done:
                ray.get(done)
                deadline = time.monotonic() + timeout_s
                continue
            for each in actors:
                each.look()
            if time.monotonic() > deadline:
                raise GetTimeoutError(f"nothing came within {timeout_s:g} s")
        return list(ray.get(list(asked)))
    except RayError as error:
        raise _meant(error) from error


def _meant(error: RayError) -> Exception:
    if isinstance(error, RayTaskError):
        cause = error.cause
        if not isinstance(cause, RayError):
            return cause if isinstance(cause, Exception) else error
        error = cause  # what it was given is gone, with whoever had it
    first, *_ = str(error).strip().splitlines() or [""]
    return Lost(f"{type(error).__name__}: {first}")
