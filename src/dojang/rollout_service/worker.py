"""Rollout worker: leases prompts of a run, samples and judges their groups, and delivers them.

    join ──► load weights ──► lease ──► workflow ──► deliver ──┐        new versions are fetched and decoded meanwhile,
                                ▲                              │        and replace the weights between two tokens
                                └──────────────────────────────┘

Nothing is sampled before the checksum of the weights agrees with the trainer's. A worker that the run does not know any
more, because the trainer was restarted, drops its rollouts and joins again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from socket import gethostname
from typing import Any

import httpx
import torch

from dojang.core.errors import DojangError, OutOfMemory
from dojang.loop.group_codec import encode
from dojang.protocols import ServingEngine, Workflow
from dojang.rollout_service.client import NotJoined, ServiceClient, VersionGone
from dojang.rollout_service.messages import JoinReply, JoinRequest, LeaseMessage
from dojang.types import Group, Problem
from dojang.weight_sync.pack_receiver import PackReceiver

__all__ = ["RolloutWorker", "WorkerParts", "worker_name"]

logger = logging.getLogger(__name__)
_ATTEMPTS = 3
"""Attempts at a group whose rollout raises, before the worker gives up."""
_RETRY_S = 1.0
"""Seconds before the second attempt; twice as many before the third."""


def worker_name(pid: int) -> str:
    """Name of a worker process of this machine."""
    return f"{gethostname()[:64]}:{pid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerParts:
    """Objects that a worker builds from the run's settings. The caller closes engines and judge."""

    join: JoinRequest
    engines: Mapping[str, ServingEngine]
    """Engine of each policy."""
    workflow: Workflow
    problem: Callable[[int], Problem]
    """Returns the problem of a prompt index."""
    slots: int
    """Groups that are sampled at a time."""
    device: torch.device | None = None
    """Merges LoRA factors; None: a CPU."""


class RolloutWorker:
    """Works for one run until that ends, or `stop` is set: then it finishes and delivers the groups it has begun."""

    def __init__(self, client: ServiceClient, parts: WorkerParts, stop: asyncio.Event) -> None:
        self._client, self._parts, self._stop = client, parts, stop

    async def run(self) -> None:
        """Joins and works. Returns when the run has ended or all is drained."""
        while True:
            joined = await self._join()
            if joined is None:
                return
            session = _Session(self._client, self._parts, self._stop, joined)
            reason = ""
            try:
                await session.work()
                return
            except NotJoined:
                logger.warning("the run was restarted: joining again; rollouts under way are dropped")
            except BaseException as error:
                reason = f"{type(error).__name__}: {error}"
                raise
            finally:
                with suppress(httpx.HTTPError):
                    await self._client.leave(joined.worker, reason)

    async def _join(self) -> JoinReply | None:
        """Joins the run; None if `stop` is set before it answers, since the client waits for a run that is gone."""
        joining, stopping = (
            asyncio.create_task(self._client.join(self._parts.join)),
            asyncio.create_task(self._stop.wait()),
        )
        try:
            await asyncio.wait((joining, stopping), return_when=asyncio.FIRST_COMPLETED)
            return joining.result() if joining.done() else None
        finally:
            for task in (joining, stopping):
                task.cancel()
            await asyncio.gather(joining, stopping, return_exceptions=True)


class _Session:
    """One membership in a run: from joining to leaving."""

    def __init__(self, client: ServiceClient, parts: WorkerParts, stop: asyncio.Event, joined: JoinReply) -> None:
        self._client, self._parts, self._stop = client, parts, stop
        self._worker = joined.worker
        self._newest = joined.version
        """Newest version of the run."""
        self._receivers = {name: PackReceiver(engine, parts.device) for name, engine in parts.engines.items()}
        self._loaded: int | None = None
        """Version that all engines hold; None before the first."""
        self._running: set[int] = set()
        """Prompts under way."""
        self._slots = asyncio.Semaphore(parts.slots)
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the session is: with the error of the first task that failed."""

    async def work(self) -> None:
        """Works until the run ends or `stop` is set; raises the error of any part."""
        self._spawn(self._beat())
        self._spawn(self._load())
        self._spawn(self._drain(self._spawn(self._lease())))
        try:
            await self._over
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._over.done():
            self._over.set_exception(error)

    def _end(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    async def _drain(self, leasing: "asyncio.Task[None]") -> None:
        """When told to stop: leases nothing more, finishes what runs."""
        await self._stop.wait()
        leasing.cancel()  # a lease on its way is returned by leaving
        await asyncio.gather(leasing, return_exceptions=True)
        logger.info("told to stop: finishing %d groups", len(self._running))
        await self._until(lambda: not self._running)
        self._end()

    async def _beat(self) -> None:
        """Renews leases, and learns of new versions."""
        while True:
            reply = await self._client.heartbeat(self._worker, sorted(self._running), self._newest)
            if reply.ended:
                self._end()
                return
            if reply.version != self._newest:
                self._newest = reply.version
                await self._notify()

    async def _load(self) -> None:
        """Loads the newest version whenever another one is held."""
        while True:
            version = self._newest
            try:
                await self._load_version(version)
            except VersionGone as error:  # newer ones were published while it was fetched
                logger.info("version %d: %s", version, error)
                await self._until(lambda: self._newest != version)  # noqa: B023 -- awaited at once
                continue
            self._loaded = version
            await self._notify()
            await self._until(lambda: self._newest != self._loaded)

    async def _load_version(self, version: int) -> None:
        """Fetches the weights of all policies, then applies them one after the other."""
        fetched = await asyncio.gather(
            *(self._prefetch(name, receiver, version) for name, receiver in self._receivers.items())
        )
        for receiver, fetch in zip(self._receivers.values(), fetched, strict=True):
            await receiver.load(version, fetch)

    async def _prefetch(
        self, policy: str, receiver: PackReceiver, version: int
    ) -> Callable[[int | None, bool], Awaitable[bytearray]]:
        """Fetches the pack that the receiver will ask for first. Returns its fetch function."""
        first = receiver.first_request
        data: bytearray | None = await self._client.weights(policy, version, *first)

        async def fetch(base: int | None, merge: bool) -> bytearray:
            nonlocal data
            found, data = data, None
            if found is not None and (base, merge) == first:
                return found
            return await self._client.weights(policy, version, base, merge)

        return fetch

    async def _lease(self) -> None:
        """Leases prompts, as many as there are slots."""
        await self._until(lambda: self._loaded is not None)
        while True:
            await self._slots.acquire()
            lease, ended = await self._client.lease(self._worker)
            if ended:
                self._end()
                return
            if lease is None:
                self._slots.release()
                continue
            self._running.add(lease.prompt_index)
            self._spawn(self._run(lease))

    async def _run(self, lease: LeaseMessage) -> None:
        """Samples one group and delivers it."""
        try:
            await self._until(lambda: self._loaded is not None and self._loaded >= lease.version)
            group = await self._sample(lease.prompt_index)
            data = await asyncio.to_thread(encode, group)
            answer = await self._client.deliver(self._worker, lease, data)
            if answer != "taken":
                logger.info("prompt %d, attempt %d: %s", lease.prompt_index, lease.attempt, answer)
        finally:
            self._running.discard(lease.prompt_index)
            self._slots.release()
            await self._notify()

    async def _sample(self, index: int) -> Group:
        """Runs the workflow; again after an error, such as one of weights that failed to load."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self._parts.workflow.run(self._parts.problem(index), index)
            except Exception as error:
                final = isinstance(error, DojangError) and not isinstance(error, OutOfMemory)
                if final or attempt == _ATTEMPTS:
                    raise
                logger.warning("prompt %d: %r; trying again", index, error)
                await asyncio.sleep(attempt * _RETRY_S)
        raise AssertionError("the last attempt raises")

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(condition)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
