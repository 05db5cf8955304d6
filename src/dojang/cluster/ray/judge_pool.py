"""Pool of judge actors: one on every node with spare CPUs.

Work goes to the least busy actor. Only a little more than an actor works on is sent ahead; the rest waits here, so a
node that joins later has work at once, and a node that dies takes little with it. Lost work is sent to another actor.
The pool checks for new nodes while work is pending.

Judge actors reserve no CPUs in Ray, so a trainer or engine that lost its node can be rescheduled at once; judging
continues there with the remaining CPUs. This module does not know what is judged.
"""

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import ray

from dojang.cluster.ray.actors import Actor, ActorLost, start_actor_on
from dojang.cluster.ray.placement import NODE_TIMEOUT_S, Node, alive_node_ids, spare_cpus
from dojang.core.errors import ClusterError, DojangError

__all__ = ["JudgeActorPool", "JudgeWorker"]

logger = logging.getLogger(__name__)
T = TypeVar("T")

_POLL_S, _POLL_EMPTY_S = 3.0, 0.5
"""Seconds between checks of the cluster; and while the pool has no worker."""
_RETRY_S = 30.0
"""Seconds before a node where the actor could not start is tried again."""
_CLOSE_S = 30.0
_MAX_LOSSES = 5
"""Workers that may be lost with the same piece of work before it fails."""


@dataclass(eq=False, slots=True)
class JudgeWorker:
    """A judge actor on one node."""

    node: Node
    concurrency: int
    """Number of submissions that it judges at a time."""
    actor: Actor
    load: int = 0
    failures: int = 0
    """Consecutive failures; a worker with failures is chosen last."""
    calls: "set[asyncio.Future[Any]]" = field(default_factory=set)
    known: set[str] = field(default_factory=set)
    """Digests of tests that it was sent and may have cached."""

    @property
    def max_load(self) -> int:
        """Number of submissions that it is sent: some more than it judges at a time, to hide the network's latency."""
        return self.concurrency + max(2, self.concurrency // 2)

    async def call(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the actor's object; cancels it there if the caller is cancelled."""
        reference = self.actor.submit(method, *arguments)
        try:
            return await self.actor.wait(reference)
        except asyncio.CancelledError:
            ray.cancel(reference)
            raise


@dataclass(frozen=True, slots=True)
class _Waiter:
    """A request that waits for a worker."""

    worker: "asyncio.Future[JudgeWorker]"
    since: float


@dataclass(frozen=True, slots=True)
class _StartFailure:
    """The error with which an actor failed to start on a node."""

    node: Node
    error: Exception
    at: float


class JudgeActorPool:
    """The judge actors of the cluster. Usable from one event loop at a time."""

    def __init__(
        self,
        factory: Callable[[int], Callable[..., Any]],
        *shared: Any,
        check: Callable[[JudgeWorker], Awaitable[None]],
        max_per_node: int,
        timeout_s: float,
    ) -> None:
        """`factory` takes the concurrency of a node (at most `max_per_node`, if not 0) and returns a function that
        makes the actor's object from `shared`. `check` raises if a new worker cannot judge."""
        self._factory, self._shared, self._check = factory, shared, check
        self._max_per_node, self._timeout_s = max_per_node, timeout_s
        self._workers: dict[str, JudgeWorker] = {}
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._failures: dict[str, _StartFailure] = {}
        self._queues: OrderedDict[str, deque[_Waiter]] = OrderedDict()
        self._pending = 0
        self._empty_since = 0.0
        self._watcher: asyncio.Task[None] | None = None
        self._closed = False

    async def ask(self, queue: str, work: Callable[[JudgeWorker], Coroutine[Any, Any, T]]) -> T:
        """Runs work on a worker; named queues take turns. Raises ActorLost if no worker could do it."""
        self._pending += 1
        try:
            reason = ""
            for _ in range(_MAX_LOSSES):
                worker = await self._acquire(queue)
                try:
                    return await _run_unless_lost(worker, work(worker))
                except ActorLost as error:
                    self._drop(worker)
                    reason = str(error)
                finally:
                    worker.load -= 1
                    self._dispatch()
            raise ActorLost(f"{_MAX_LOSSES} workers were lost while judging it ({reason})")
        finally:
            self._pending -= 1

    async def open(self) -> list[JudgeWorker]:
        """Starts workers on all nodes. Raises an error with the node's address if one cannot start; ignores nodes that
        are gone, once Ray has noticed."""
        started = time.monotonic()
        while True:
            await self._refresh()
            await asyncio.gather(*self._starting.values())
            there = await asyncio.to_thread(alive_node_ids)
            found = [each for each in self._failures.values() if each.node.id in there]
            if not found:
                return list(self._workers.values())
            serious = [each for each in found if not isinstance(each.error, ActorLost)]
            if serious or time.monotonic() - started > NODE_TIMEOUT_S:
                failure = (serious or found)[0]
                kind = type(failure.error) if isinstance(failure.error, DojangError) else ClusterError
                raise kind(f"judging cannot start on {failure.node.address}: {failure.error}") from failure.error
            for each in found:
                del self._failures[each.node.id]  # retry it
            await asyncio.sleep(_POLL_S)

    async def close(self) -> None:
        """Ends all workers and fails waiting requests."""
        self._closed = True
        if self._watcher is not None:
            self._watcher.cancel()
        while (waiter := self._next_waiter()) is not None:
            waiter.worker.set_exception(ActorLost("the judge was closed"))
        for task in self._starting.values():
            task.cancel()
        await asyncio.gather(*self._starting.values(), return_exceptions=True)
        workers, self._workers = list(self._workers.values()), {}
        await asyncio.gather(*map(_end, workers), *self._ending, return_exceptions=True)

    async def _acquire(self, queue: str) -> JudgeWorker:
        if self._closed:
            raise ActorLost("the judge is closed")
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch())
        waiter = _Waiter(asyncio.get_running_loop().create_future(), time.monotonic())
        self._queues.setdefault(queue, deque()).append(waiter)
        self._dispatch()
        try:
            return await waiter.worker
        except asyncio.CancelledError:
            if waiter.worker.done() and not waiter.worker.cancelled() and not waiter.worker.exception():
                waiter.worker.result().load -= 1  # it was assigned to the cancelled request
                self._dispatch()
            raise

    def _dispatch(self) -> None:
        while (worker := self._least_busy()) is not None and (waiter := self._next_waiter()) is not None:
            worker.load += 1
            waiter.worker.set_result(worker)

    def _least_busy(self) -> JudgeWorker | None:
        free = [worker for worker in self._workers.values() if worker.load < worker.max_load]
        return min(free, key=lambda worker: (worker.failures > 0, worker.load / worker.concurrency), default=None)

    def _next_waiter(self) -> _Waiter | None:
        """Takes the next waiting request, round-robin over the queues."""
        while self._queues:
            name, queue = self._queues.popitem(last=False)
            waiter = queue.popleft()
            if queue:
                self._queues[name] = queue  # to the end of the round
            if not waiter.worker.done():
                return waiter
        return None

    async def _watch(self) -> None:
        self._empty_since = time.monotonic()
        while self._pending:
            try:
                await self._refresh()
                lookup_error = ""
            except Exception as error:  # the head may be unreachable for a while
                lookup_error = str(error)
                logger.warning("cannot list the cluster's nodes: %s", error)
            self._fail_expired(lookup_error)
            await asyncio.sleep(_POLL_S if self._workers else _POLL_EMPTY_S)

    async def _refresh(self) -> None:
        """Starts missing workers, restarts those whose spare CPUs changed, and drops those whose node is gone."""
        there = await asyncio.to_thread(spare_cpus)
        alive = {node.id for node, _ in there}
        for gone in [each for each in self._workers.values() if each.node.id not in alive]:
            self._drop(gone)
        self._failures = {node: failure for node, failure in self._failures.items() if node in alive}
        for node, cpus in there:
            concurrency = min(cpus, self._max_per_node or cpus)
            worker, failure = self._workers.get(node.id), self._failures.get(node.id)
            if failure is not None and time.monotonic() - failure.at < _RETRY_S:
                continue
            if worker is not None and not concurrency:
                self._retire(worker)
            if (
                concurrency
                and (worker is None or worker.concurrency != concurrency)
                and node.id not in self._starting
                and not self._closed
            ):
                self._starting[node.id] = asyncio.create_task(self._start(node, concurrency))

    async def _start(self, node: Node, concurrency: int) -> None:
        actor = start_actor_on(node, "Judge")
        worker = JudgeWorker(node, concurrency, actor)
        try:
            async with asyncio.timeout(self._timeout_s):
                await actor.wait(actor.make(self._factory(concurrency), *self._shared))
                await self._check(worker)
        except BaseException as error:
            actor.kill()
            if not isinstance(error, Exception):
                raise
            logger.warning("judging cannot start on %s: %s", node.address, error)
            self._failures[node.id] = _StartFailure(node, error, time.monotonic())
        else:
            self._failures.pop(node.id, None)
            if (before := self._workers.get(node.id)) is not None:
                self._retire(before)
            self._workers[node.id] = worker
            self._dispatch()
        finally:
            self._starting.pop(node.id, None)

    def _fail_expired(self, lookup_error: str) -> None:
        """Fails requests that have waited past the timeout while the pool had no worker."""
        now = time.monotonic()
        if self._workers:
            self._empty_since = now
        failed = [f"{each.node.address}: {each.error}" for each in self._failures.values()]
        why = "; ".join([lookup_error] * bool(lookup_error) + failed)
        for waiter in [waiter for queue in self._queues.values() for waiter in queue if not waiter.worker.done()]:
            if now - max(waiter.since, self._empty_since) > self._timeout_s:
                text = f"no judge was available for {self._timeout_s:g} s"
                waiter.worker.set_exception(ActorLost(f"{text} ({why})" if why else text))

    def _drop(self, worker: JudgeWorker) -> None:
        """Removes a worker that is lost, and cancels its calls."""
        if self._workers.get(worker.node.id) is worker:
            del self._workers[worker.node.id]
        worker.actor.kill()
        for call in worker.calls:
            call.cancel()

    def _retire(self, worker: JudgeWorker) -> None:
        """Removes a worker after it has finished its calls."""
        self._workers.pop(worker.node.id, None)
        task = asyncio.create_task(_finish(worker))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


async def _run_unless_lost(worker: JudgeWorker, work: Coroutine[Any, Any, T]) -> T:
    """Result of the work; raises ActorLost if the worker is dropped meanwhile."""
    call = asyncio.ensure_future(work)
    worker.calls.add(call)
    try:
        await asyncio.wait({call})
    finally:
        worker.calls.discard(call)
        call.cancel()  # if the caller was cancelled
    if call.cancelled():
        raise ActorLost(f"the node at {worker.node.address} is gone")
    return call.result()


async def _finish(worker: JudgeWorker) -> None:
    try:
        while worker.calls:
            await asyncio.wait(set(worker.calls))
    finally:
        await _end(worker)


async def _end(worker: JudgeWorker) -> None:
    try:
        with suppress(Exception):  # it may be lost already
            await asyncio.wait_for(worker.actor.call("close"), _CLOSE_S)
    finally:
        worker.actor.kill()
        for call in worker.calls:
            call.cancel()
