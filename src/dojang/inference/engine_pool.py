"""A pool of engine replicas that acts as one engine.

A request goes to the replica with the least work; all its samples stay together, so that its prompt is prefilled once.
Samples depend on the request alone, so a request whose replica fails is sent to another. New weights are loaded by a
few replicas at a time while the others continue; a replica that takes too long is excluded and rejoins when it has the
newest weights.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from dojang.core.errors import ClusterError, DojangError, OutOfMemory, RanksLost
from dojang.core.sum_metrics import sum_metrics
from dojang.protocols import RolloutEngine
from dojang.types import Completion, Metrics, Sampling

__all__ = ["EnginePool"]

logger = logging.getLogger(__name__)
_ATTEMPTS = 3
"""Attempts per replica before a request fails."""


@dataclass(eq=False)
class _Replica:
    engine: RolloutEngine
    name: str
    ready: bool = True
    load: int = 0
    """Tokens that its requests may still sample."""
    reason: str = ""
    """Why it is (or was) not ready."""
    weights_lost: bool = False
    """Whether the weights it needs are lost: only a restarted run can publish new ones."""
    recovery: "asyncio.Task[None] | None" = field(default=None)


class EnginePool:
    """A RolloutEngine over several replicas; `close` closes them too."""

    def __init__(
        self,
        engines: Sequence[RolloutEngine],
        *,
        loading: int | None = None,
        timeout_s: float = 60.0,
        retry_s: float = 5.0,
    ) -> None:
        if not engines:
            raise ValueError("an EnginePool needs at least one engine")
        self._replicas = [_Replica(engine, f"engine {at}") for at, engine in enumerate(engines)]
        self._loading = asyncio.Semaphore(loading or len(engines))
        """Limits how many replicas load weights at a time."""
        self._timeout_s = timeout_s
        """Seconds a replica may take to load weights before it is excluded; also the wait for a recovery when none is
        ready."""
        self._retry_s = retry_s
        """Seconds before a failed replica is tried again."""
        self._version: int | None = None
        self._closed = False

    @property
    def ready(self) -> int:
        """Number of replicas that accept requests."""
        return sum(replica.ready for replica in self._replicas)

    async def generate(self, prompt: Sequence[int], n: int, sampling: Sampling) -> list[Completion]:
        cost = n * sampling.max_tokens
        for left in reversed(range(_ATTEMPTS * len(self._replicas))):
            replica = await self._next()
            replica.load += cost
            try:
                return await replica.engine.generate(prompt, n, sampling)
            except Exception as error:
                invalid = isinstance(error, DojangError | ValueError | IndexError)  # on every replica
                if self._closed or not left or (invalid and not isinstance(error, OutOfMemory)):
                    raise
                self._exclude(replica, error)
            finally:
                replica.load -= cost
        raise AssertionError("the last attempt raises")

    async def load(self, version: int) -> Metrics:
        """Load weights into all ready replicas; excluded ones load them before they rejoin."""
        self._version = version
        ready = [replica for replica in self._replicas if replica.ready]
        tasks = {asyncio.ensure_future(self._load(replica, version)): replica for replica in ready}
        if not tasks:
            await self._next()
            return {}
        done, late = await asyncio.wait(tasks, timeout=self._timeout_s)
        failures = []
        for task in done:
            if error := task.exception():
                failures.append(error)
                if not isinstance(error, LookupError):
                    self._exclude(tasks[task], error)
        for task in late:
            self._exclude(tasks[task], TimeoutError(f"weights were not loaded within {self._timeout_s:g} s"), task)
        if len(failures) == len(tasks):
            raise failures[0]
        return sum_metrics(task.result() for task in done if not task.exception())

    async def _load(self, replica: _Replica, version: int) -> Metrics | None:
        async with self._loading:
            return await replica.engine.load(version)

    async def close(self) -> None:
        self._closed = True
        for replica in self._replicas:
            if replica.recovery is not None:
                replica.recovery.cancel()
                with suppress(asyncio.CancelledError):
                    await replica.recovery
        await asyncio.gather(*(replica.engine.close() for replica in self._replicas), return_exceptions=True)

    async def _next(self) -> _Replica:
        """Return the ready replica with the least work; wait for a recovery if none is ready."""
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        while not self._closed:
            if ready := [replica for replica in self._replicas if replica.ready]:
                return min(ready, key=lambda replica: replica.load)
            if all(replica.weights_lost for replica in self._replicas):
                raise RanksLost("; ".join(f"{replica.name}: {replica.reason}" for replica in self._replicas))
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                reasons = "; ".join(f"{replica.name}: {replica.reason}" for replica in self._replicas)
                raise ClusterError(f"no engine is ready, and none recovered within {self._timeout_s:g} s ({reasons})")
            recoveries = [replica.recovery for replica in self._replicas if replica.recovery is not None]
            await asyncio.wait(recoveries, timeout=min(left, self._retry_s), return_when=asyncio.FIRST_COMPLETED)
        raise RuntimeError("the engine is closed")

    def _exclude(
        self, replica: _Replica, error: BaseException, loading: "asyncio.Future[Metrics | None] | None" = None
    ) -> None:
        if not replica.ready:
            return
        replica.ready, replica.reason = False, f"{type(error).__name__}: {error}"
        logger.warning("%s is excluded until it recovers: %s", replica.name, replica.reason)
        replica.recovery = asyncio.ensure_future(self._recover(replica, loading))

    async def _recover(self, replica: _Replica, loading: "asyncio.Future[Metrics | None] | None") -> None:
        """Retry until the replica has the newest weights."""
        while not replica.ready:
            version = self._version
            try:
                if loading is not None:
                    await loading
                else:
                    await asyncio.sleep(self._retry_s)
                    if version is not None:
                        await self._load(replica, version)
                replica.ready = version == self._version
                replica.weights_lost = False
            except Exception as error:
                replica.weights_lost = isinstance(error, RanksLost)
                replica.reason = f"{type(error).__name__}: {error}"
            loading = None
