"""Several engines as one.

A request goes to the engine with the least to do; all its samples stay together, so that its prompt is read once. What
is drawn depends on the request alone, so a request whose engine fails is simply asked of another. New weights are
loaded by a few engines at a time, while others go on; one that takes too long is set aside, and joins again when it has
caught up.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from dojang.core.errors import ClusterError, DojangError, RanksLost
from dojang.protocols import RolloutEngine
from dojang.types import Completion, Metrics, Sampling

__all__ = ["Fleet", "total"]

logger = logging.getLogger(__name__)
_ATTEMPTS = 3
"""How often each engine may fail a request before that is the request's fate."""


@dataclass(eq=False)
class _Ship:
    engine: RolloutEngine
    name: str
    ready: bool = True
    load: int = 0
    """Tokens that may still have to be written."""
    complaint: str = ""
    """Why it is not ready, or was not."""
    hopeless: bool = False
    """Whether the weights it needs are gone: only a run that begins again has others."""
    catching_up: "asyncio.Task[None] | None" = field(default=None)


class Fleet:
    """A RolloutEngine made of others, which it closes."""

    def __init__(
        self,
        engines: Sequence[RolloutEngine],
        *,
        loading: int | None = None,
        timeout_s: float = 60.0,
        mend_s: float = 5.0,
    ) -> None:
        if not engines:
            raise ValueError("a fleet needs an engine")
        self._ships = [_Ship(engine, f"engine {at}") for at, engine in enumerate(engines)]
        self._loading = asyncio.Semaphore(loading or len(engines))
        """How many load weights at a time."""
        self._timeout_s = timeout_s
        """How long loading may take before the others go on without an engine; and how long to hope that one of them
        recovers when none is left."""
        self._mend_s = mend_s
        """How long an engine that has failed is left alone before it is tried again."""
        self._version: int | None = None
        self._closed = False

    @property
    def ready(self) -> int:
        """How many engines take requests."""
        return sum(ship.ready for ship in self._ships)

    async def generate(self, prompt: Sequence[int], n: int, sampling: Sampling) -> list[Completion]:
        cost = n * sampling.max_tokens
        for left in reversed(range(_ATTEMPTS * len(self._ships))):
            ship = await self._next()
            ship.load += cost
            try:
                return await ship.engine.generate(prompt, n, sampling)
            except (DojangError, ValueError, IndexError):
                raise  # the request's own fault: no other engine could do better
            except Exception as error:
                if self._closed or not left:
                    raise
                self._set_aside(ship, error)
            finally:
                ship.load -= cost
        raise AssertionError("the last attempt raises")

    async def load(self, version: int) -> Metrics:
        """All that are ready in time have these weights afterwards; the rest take them before they are asked again."""
        self._version = version
        tasks = {asyncio.ensure_future(self._load(ship, version)): ship for ship in self._ships if ship.ready}
        if not tasks:
            await self._next()
            return {}
        done, late = await asyncio.wait(tasks, timeout=self._timeout_s)
        failures = []
        for task in done:
            if error := task.exception():
                failures.append(error)
                if not isinstance(error, LookupError):
                    self._set_aside(tasks[task], error)
        for task in late:
            self._set_aside(tasks[task], TimeoutError(f"weights were not loaded within {self._timeout_s:g} s"), task)
        if len(failures) == len(tasks):
            raise failures[0]
        return total(task.result() for task in done if not task.exception())

    async def _load(self, ship: _Ship, version: int) -> Metrics | None:
        async with self._loading:
            return await ship.engine.load(version)

    async def close(self) -> None:
        self._closed = True
        for ship in self._ships:
            if ship.catching_up is not None:
                ship.catching_up.cancel()
                with suppress(asyncio.CancelledError):
                    await ship.catching_up
        await asyncio.gather(*(ship.engine.close() for ship in self._ships), return_exceptions=True)

    async def _next(self) -> _Ship:
        """The engine with the least to do; waits a while for one to recover if there is none."""
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        while not self._closed:
            if ready := [ship for ship in self._ships if ship.ready]:
                return min(ready, key=lambda ship: ship.load)
            if all(ship.hopeless for ship in self._ships):
                raise RanksLost("; ".join(f"{ship.name}: {ship.complaint}" for ship in self._ships))
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                reasons = "; ".join(f"{ship.name}: {ship.complaint}" for ship in self._ships)
                raise ClusterError(f"no engine works, and none has recovered within {self._timeout_s:g} s ({reasons})")
            mending = [ship.catching_up for ship in self._ships if ship.catching_up is not None]
            await asyncio.wait(mending, timeout=min(left, self._mend_s), return_when=asyncio.FIRST_COMPLETED)
        raise RuntimeError("the engine is closed")

    def _set_aside(
        self, ship: _Ship, error: BaseException, loading: "asyncio.Future[Metrics | None] | None" = None
    ) -> None:
        if not ship.ready:
            return
        ship.ready, ship.complaint = False, f"{type(error).__name__}: {error}"
        logger.warning("%s is set aside: %s", ship.name, ship.complaint)
        ship.catching_up = asyncio.ensure_future(self._catch_up(ship, loading))

    async def _catch_up(self, ship: _Ship, loading: "asyncio.Future[Metrics | None] | None") -> None:
        """Until the engine has the newest weights."""
        while not ship.ready:
            version = self._version
            try:
                if loading is not None:
                    await loading
                else:
                    await asyncio.sleep(self._mend_s)
                    if version is not None:
                        await self._load(ship, version)
                ship.ready = version == self._version
                ship.hopeless = False
            except Exception as error:
                ship.hopeless = isinstance(error, RanksLost)
                ship.complaint = f"{type(error).__name__}: {error}"
            loading = None


def total(figures: Iterable[Metrics | None]) -> Metrics:
    """Of several engines' ways for weights."""
    sums = defaultdict[str, float](float)
    for each in figures:
        for name, value in (each or {}).items():
            sums[name] += value
    return sums
