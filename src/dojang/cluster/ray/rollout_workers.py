"""Rollout workers as Ray actors: they join the run as those of other machines do.

Each worker has a placement group. Ray reserves its resources as soon as a node has them, also one that joins during the
run, or another one if its node is lost. The run does not wait for workers without a place: it says which, and why.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import ray
from ray.exceptions import RayError

from dojang.cluster.ray.actors import Actor, ActorLost, start_actor
from dojang.cluster.ray.placement import Placement, is_placed, release, request, why_unplaced
from dojang.rollout_service.served_workers import OnEnd
from dojang.rollout_service.worker import worker_name

__all__ = ["RayWorkers", "WorkerActor"]

logger = logging.getLogger(__name__)
_POLL_S = 1.0
"""Seconds between looks at the places of waiting workers."""
_WARN_S = 10.0
"""Seconds without a place after which a worker is reported."""
_RETRY_S = 5.0
"""Seconds before a worker that ended is started again."""


class WorkerActor:
    """The worker inside the actor."""

    def __init__(self, serve: Callable[[str, str], Awaitable[None]]) -> None:
        """`serve` joins the run at a URL with a token, and works until it ends."""
        self._serve = serve

    def name(self) -> str:
        """Name by which the run knows the worker."""
        return worker_name(os.getpid())

    async def run(self, url: str, token: str) -> None:
        await self._serve(url, token)


class RayWorkers:
    """The StartedWorkers of a Ray cluster."""

    def __init__(
        self, factory: Callable[[], WorkerActor], count: int, *, cpus: float, gpus: float, timeout_s: float
    ) -> None:
        """`cpus` and `gpus` are those of each worker; `timeout_s` limits the start of an actor that has a place."""
        self._factory, self._count, self._cpus, self._gpus = factory, count, cpus, gpus
        self._timeout_s = timeout_s
        self._placements: dict[int, Placement] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._working: set[int] = set()
        self._waiting: dict[int, float] = {}
        """Workers without a place, and since when."""
        self._why = ""
        self._starts = 0
        self._watcher: asyncio.Task[None] | None = None

    @property
    def host(self) -> str:
        return str(ray.util.get_node_ip_address())

    def start(self, url: str, token: str, on_end: OnEnd) -> None:
        # The token is an argument of a call: Ray lists options of actors and their environments, but not arguments.
        self._tasks = {
            number: asyncio.create_task(self._keep(number, url, token, on_end)) for number in range(1, self._count + 1)
        }
        self._watcher = asyncio.create_task(self._watch())

    def describe(self) -> str:
        late = [number for number, since in dict(self._waiting).items() if time.monotonic() - since > _WARN_S]
        if not late or not self._why:
            return ""
        ending, names = _names(sorted(late))
        return f"rollout worker{ending} {names} of {self._count} not started: {self._why}"

    async def close(self, limit_s: float) -> None:
        ending = {task for number, task in self._tasks.items() if number in self._working}
        if ending:
            await asyncio.wait(ending, timeout=limit_s)
        tasks = [*self._tasks.values(), *([self._watcher] if self._watcher else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(release, list(self._placements.values()))

    async def _keep(self, number: int, url: str, token: str, on_end: OnEnd) -> None:
        """Runs one worker, again whenever it ends before the run."""
        while True:
            try:
                placement = await self._place(number)
                self._working.add(number)
                if not await self._run(number, placement, url, token, on_end):
                    return
            except RayError as error:  # the head may be unreachable for a while
                logger.warning("rollout worker %d cannot be started now: %s", number, error)
            finally:
                self._working.discard(number)
            await asyncio.sleep(_RETRY_S)

    async def _place(self, number: int) -> Placement:
        """Waits until the worker has a place."""
        self._waiting.setdefault(number, time.monotonic())
        if number not in self._placements:
            self._placements[number] = await asyncio.to_thread(request, cpus=self._cpus, gpus=self._gpus)
        placement = self._placements[number]
        while not await asyncio.to_thread(is_placed, placement):
            await asyncio.sleep(_POLL_S)
        del self._waiting[number]
        return placement

    async def _run(self, number: int, placement: Placement, url: str, token: str, on_end: OnEnd) -> bool:
        """Runs one actor to its end; reports whether another one is needed."""
        self._starts += 1
        actor, name = start_actor(placement, "RolloutWorker"), f"worker {number} (start {self._starts})"
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._prepare(actor, placement)
                name = await actor.call("name")
            await actor.call("run", url, token)
            reason = "it ended before the run"
        except TimeoutError:
            reason = f"it did not start within {self._timeout_s:g} s"
        except ActorLost as error:
            reason = str(error)
            if await asyncio.to_thread(actor.node_is_gone):
                logger.warning("rollout worker %d lost its node (%s); it starts on another one", number, reason)
                reason = ""  # no failure of the worker
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        finally:
            actor.kill()
        return on_end(name, reason)

    async def _prepare(self, actor: Actor, placement: Placement) -> None:
        """Waits until the actor has started; ActorLost if its place is lost meanwhile."""
        preparing = asyncio.ensure_future(actor.prepare(self._factory))
        try:
            while not (await asyncio.wait({preparing}, timeout=_POLL_S))[0]:
                if not await asyncio.to_thread(is_placed, placement):
                    raise ActorLost("its place is lost")
            preparing.result()
        finally:
            preparing.cancel()

    async def _watch(self) -> None:
        """Says which workers wait for a place, whenever that changes."""
        said: list[int] = []
        while True:
            await asyncio.sleep(_POLL_S)
            late = sorted(number for number, since in self._waiting.items() if time.monotonic() - since > _WARN_S)
            if late:
                with suppress(RayError):
                    self._why = await asyncio.to_thread(why_unplaced, self._cpus, self._gpus)
            if late != said:
                started = [number for number in said if number not in late]
                if started:
                    logger.warning("rollout worker%s %s: a node has room now", *_names(started))
                if late:
                    logger.warning("%s; the run goes on without, until a node has room", self.describe())
            said = late


def _names(numbers: list[int]) -> tuple[str, str]:
    """Plural ending and numbers."""
    return "s" * (len(numbers) > 1), ", ".join(map(str, numbers))
