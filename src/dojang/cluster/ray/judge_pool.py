"""A process for judging on every machine of the cluster that has processors to spare, and who gets which work.

The least busy one is asked. What it has not begun stays here, but for a little: so a machine that joins later has work
at once, and one that dies takes little with it. What it took is asked of another. Machines are looked for while there
is work.

The processes are not in Ray's books: a trainer or an engine that has lost its machine finds another place at once, and
judging there makes do with what is left. What is judged, and how, is not known here.
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

from dojang.cluster.ray.actors import Actor, Lost, spawn_at
from dojang.cluster.ray.placement import NOTICE_S, Node, alive, spare
from dojang.core.errors import ClusterError, DojangError

__all__ = ["Court", "Courts"]

logger = logging.getLogger(__name__)
T = TypeVar("T")

_LOOK_S, _HURRY_S = 3.0, 0.5
"""Between two looks at the cluster; and if nobody can judge."""
_AGAIN_S = 30.0
"""Until a machine where judging could not begin is tried again."""
_CLOSE_S = 30.0
_LOSSES = 5
"""Processes that may end over the same work before it is given up."""


@dataclass(eq=False, slots=True)
class Court:
    """A process that judges, on one machine."""

    node: Node
    seats: int
    """How much it works on at a time."""
    actor: Actor
    load: int = 0
    failures: int = 0
    """In a row; such a one is asked last."""
    calls: "set[asyncio.Future[Any]]" = field(default_factory=set)
    known: set[str] = field(default_factory=set)
    """What it was sent and may have kept."""

    @property
    def room(self) -> int:
        """How much it is given: enough to go on with while an answer travels."""
        return self.seats + max(2, self.seats // 2)

    async def call(self, verb: str, *arguments: Any) -> Any:
        """Ask it. Whoever does not wait for the answer any more does not want it."""
        asked = self.actor.begin(verb, *arguments)
        try:
            return await self.actor.wait(asked)
        except asyncio.CancelledError:
            ray.cancel(asked)
            raise


@dataclass(frozen=True, slots=True)
class _Turn:
    """Somebody who waits for a court."""

    court: "asyncio.Future[Court]"
    since: float


@dataclass(frozen=True, slots=True)
class _Trouble:
    """Why judging could not begin on a machine."""

    node: Node
    error: Exception
    at: float


class Courts:
    """All of them. For one event loop at a time."""

    def __init__(
        self,
        factory: Callable[[int], Callable[..., Any]],
        *shared: Any,
        prove: Callable[[Court], Awaitable[None]],
        most: int,
        timeout_s: float,
    ) -> None:
        """`factory` is told how much is to be worked on at a time (on each machine `most`, if that is not 0) and gives
        what makes the object in the process, out of what is `shared`. `prove` raises if a court that has just begun is
        no good."""
        self._factory, self._shared, self._prove = factory, shared, prove
        self._most, self._timeout_s = most, timeout_s
        self._courts: dict[str, Court] = {}
        self._beginning: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._trouble: dict[str, _Trouble] = {}
        self._lanes: OrderedDict[str, deque[_Turn]] = OrderedDict()
        self._asked = 0
        self._nobody_since = 0.0
        self._watching: asyncio.Task[None] | None = None
        self._closed = False

    async def ask(self, lane: str, work: Callable[[Court], Coroutine[Any, Any, T]]) -> T:
        """Have one of them do it; lanes take turns. Lost if nobody could."""
        self._asked += 1
        try:
            reason = ""
            for _ in range(_LOSSES):
                court = await self._free(lane)
                try:
                    return await _unless_lost(court, work(court))
                except Lost as error:
                    self._drop(court)
                    reason = str(error)
                finally:
                    court.load -= 1
                    self._hand_out()
            raise Lost(f"{_LOSSES} processes that judged it ended ({reason})")
        finally:
            self._asked -= 1

    async def open(self) -> list[Court]:
        """Begin wherever it is possible; an error if that fails anywhere, with the machine's address. One that is gone
        is not missed, once Ray has noticed."""
        began = time.monotonic()
        while True:
            await self._look()
            await asyncio.gather(*self._beginning.values())
            there = await asyncio.to_thread(alive)
            found = [each for each in self._trouble.values() if each.node.id in there]
            if not found:
                return list(self._courts.values())
            serious = [each for each in found if not isinstance(each.error, Lost)]
            if serious or time.monotonic() - began > NOTICE_S:
                trouble = (serious or found)[0]
                kind = type(trouble.error) if isinstance(trouble.error, DojangError) else ClusterError
                raise kind(f"judging cannot begin on {trouble.node.address}: {trouble.error}") from trouble.error
            for each in found:
                del self._trouble[each.node.id]  # to be tried again
            await asyncio.sleep(_LOOK_S)

    async def close(self) -> None:
        """Nothing is left running anywhere."""
        self._closed = True
        if self._watching is not None:
            self._watching.cancel()
        while (turn := self._next()) is not None:
            turn.court.set_exception(Lost("the judge was closed"))
        for task in self._beginning.values():
            task.cancel()
        await asyncio.gather(*self._beginning.values(), return_exceptions=True)
        courts, self._courts = list(self._courts.values()), {}
        await asyncio.gather(*map(_end, courts), *self._ending, return_exceptions=True)

    async def _free(self, lane: str) -> Court:
        if self._closed:
            raise Lost("the judge is closed")
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())
        turn = _Turn(asyncio.get_running_loop().create_future(), time.monotonic())
        self._lanes.setdefault(lane, deque()).append(turn)
        self._hand_out()
        try:
            return await turn.court
        except asyncio.CancelledError:
            if turn.court.done() and not turn.court.cancelled() and not turn.court.exception():
                turn.court.result().load -= 1  # just given to somebody who has left
                self._hand_out()
            raise

    def _hand_out(self) -> None:
        while (court := self._least_busy()) is not None and (turn := self._next()) is not None:
            court.load += 1
            turn.court.set_result(court)

    def _least_busy(self) -> Court | None:
        free = [court for court in self._courts.values() if court.load < court.room]
        return min(free, key=lambda court: (court.failures > 0, court.load / court.seats), default=None)

    def _next(self) -> _Turn | None:
        """The first of the lane whose turn it is."""
        while self._lanes:
            name, lane = self._lanes.popitem(last=False)
            turn = lane.popleft()
            if lane:
                self._lanes[name] = lane  # to the end of the round
            if not turn.court.done():
                return turn
        return None

    async def _watch(self) -> None:
        self._nobody_since = time.monotonic()
        while self._asked:
            try:
                await self._look()
                unseen = ""
            except Exception as error:  # the cluster's head may be out of reach for a while
                unseen = str(error)
                logger.warning("cannot see what machines there are: %s", error)
            self._give_up(unseen)
            await asyncio.sleep(_LOOK_S if self._courts else _HURRY_S)

    async def _look(self) -> None:
        """Begin where there is nobody, or with other means; leave those whose machine is gone."""
        there = await asyncio.to_thread(spare)
        alive = {node.id for node, _ in there}
        for gone in [each for each in self._courts.values() if each.node.id not in alive]:
            self._drop(gone)
        self._trouble = {node: trouble for node, trouble in self._trouble.items() if node in alive}
        for node, processors in there:
            seats = min(processors, self._most or processors)
            court, trouble = self._courts.get(node.id), self._trouble.get(node.id)
            if trouble is not None and time.monotonic() - trouble.at < _AGAIN_S:
                continue
            if court is not None and not seats:
                self._retire(court)
            if (
                seats
                and (court is None or court.seats != seats)
                and node.id not in self._beginning
                and not self._closed
            ):
                self._beginning[node.id] = asyncio.create_task(self._begin(node, seats))

    async def _begin(self, node: Node, seats: int) -> None:
        actor = spawn_at(node, "Judge")
        court = Court(node, seats, actor)
        try:
            async with asyncio.timeout(self._timeout_s):
                await actor.wait(actor.make(self._factory(seats), *self._shared))
                await self._prove(court)
        except BaseException as error:
            actor.kill()
            if not isinstance(error, Exception):
                raise
            logger.warning("judging cannot begin on %s: %s", node.address, error)
            self._trouble[node.id] = _Trouble(node, error, time.monotonic())
        else:
            self._trouble.pop(node.id, None)
            if (before := self._courts.get(node.id)) is not None:
                self._retire(before)
            self._courts[node.id] = court
            self._hand_out()
        finally:
            self._beginning.pop(node.id, None)

    def _give_up(self, unseen: str) -> None:
        """Those who have waited too long while there was nobody need not wait for more."""
        now = time.monotonic()
        if self._courts:
            self._nobody_since = now
        why = "; ".join(
            [unseen] * bool(unseen) + [f"{each.node.address}: {each.error}" for each in self._trouble.values()]
        )
        for turn in [turn for lane in self._lanes.values() for turn in lane if not turn.court.done()]:
            if now - max(turn.since, self._nobody_since) > self._timeout_s:
                words = f"there was nobody to judge for {self._timeout_s:g} s"
                turn.court.set_exception(Lost(f"{words} ({why})" if why else words))

    def _drop(self, court: Court) -> None:
        """It is gone, or out of reach."""
        if self._courts.get(court.node.id) is court:
            del self._courts[court.node.id]
        court.actor.kill()
        for call in court.calls:
            call.cancel()

    def _retire(self, court: Court) -> None:
        """It may finish what it has."""
        self._courts.pop(court.node.id, None)
        task = asyncio.create_task(_finish(court))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


async def _unless_lost(court: Court, work: Coroutine[Any, Any, T]) -> T:
    """What comes of it; Lost if the court is given up meanwhile."""
    call = asyncio.ensure_future(work)
    court.calls.add(call)
    try:
        await asyncio.wait({call})
    finally:
        court.calls.discard(call)
        call.cancel()  # if whoever asked has left
    if call.cancelled():
        raise Lost(f"the machine at {court.node.address} is gone")
    return call.result()


async def _finish(court: Court) -> None:
    try:
        while court.calls:
            await asyncio.wait(set(court.calls))
    finally:
        await _end(court)


async def _end(court: Court) -> None:
    try:
        with suppress(Exception):  # it may be gone already
            await asyncio.wait_for(court.actor.do("close"), _CLOSE_S)
    finally:
        court.actor.kill()
        for call in court.calls:
            call.cancel()
