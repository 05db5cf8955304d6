"""An engine in a process elsewhere.

One that is lost is made anew when it is next told to load weights, which a `Fleet` does with engines that have failed.
Until it has the weights it is expected to have, it draws nothing: a new process begins with those of the model's files.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from dojang.cluster.ray.actors import Actor, Lost, spawn
from dojang.cluster.ray.object_store import Held, Shared, pick_up
from dojang.cluster.ray.placement import NOTICE_S, Place, give_back
from dojang.core.errors import RanksLost
from dojang.protocols import RolloutEngine, WeightStore
from dojang.types import Completion, Metrics, Sampling

__all__ = ["RayEngine", "Sampler"]

_CLOSE_S = 30.0
_AGAIN_S = 5.0
"""Until another process is tried where one was lost."""


class Sampler:
    """The engine's side: in the process that samples."""

    def __init__(self, engine: RolloutEngine, weights: WeightStore) -> None:
        self._engine, self._weights = engine, weights
        self._version: int | None = None

    async def generate(self, version: int, prompt: Sequence[int], n: int, sampling: Sampling) -> list[Completion]:
        if version != self._version:
            raise RuntimeError(f"the engine has weights version {self._version}, not {version}")
        return await self._engine.generate(prompt, n, sampling)

    async def load(self, version: int, arrays: Any) -> Metrics | None:
        self._version = None  # in between it has neither
        self._weights.publish(version, pick_up(arrays))
        figures = await self._engine.load(version)
        if isinstance(self._weights, Held):
            self._weights.forget()
        self._version = version
        return figures

    async def close(self) -> None:
        await self._engine.close()


class RayEngine:
    """A RolloutEngine whose work is done by a Sampler elsewhere."""

    def __init__(self, factory: Callable[[], Sampler], place: Place, weights: Shared, timeout_s: float) -> None:
        """`timeout_s` is for a process to begin, and for weights to reach it."""
        self._factory, self._place, self._weights, self._timeout_s = factory, place, weights, timeout_s
        self._actor: Actor | None = None
        self._version = -1

    async def generate(self, prompt: Sequence[int], n: int, sampling: Sampling) -> list[Completion]:
        found: list[Completion] = await self._ask("generate", self._version, tuple(prompt), n, sampling)
        return found

    async def load(self, version: int) -> Metrics | None:
        reference = self._weights.reference(version)
        if self._actor is not None:
            with suppress(Lost):  # since it was asked last: it may be the only engine there is
                return await self._load(version, reference)
        try:
            if self._actor is None:
                self._actor = await self._begin()
            return await self._load(version, reference)
        except Lost as error:  # so is the machine that has the weights, perhaps
            raise RanksLost(f"an engine could not be given new weights ({error})") from error

    async def _begin(self) -> Actor:
        """A new process. If its machine is lost, another is tried once Ray has noticed."""
        began = time.monotonic()
        while True:
            actor = spawn(self._place, "Engine")
            try:
                async with asyncio.timeout(self._timeout_s):
                    await actor.prepare(self._factory)
            except BaseException as error:
                actor.kill()
                if isinstance(error, TimeoutError):
                    raise Lost(f"it did not begin within {self._timeout_s:g} s") from error
                if not isinstance(error, Lost) or time.monotonic() - began > NOTICE_S:
                    raise
                await asyncio.sleep(_AGAIN_S)
            else:
                return actor

    async def _load(self, version: int, reference: Any) -> Metrics | None:
        try:
            async with asyncio.timeout(self._timeout_s):
                figures: Metrics | None = await self._ask("load", version, reference)
        except TimeoutError as error:
            self._forget(self._actor)
            raise Lost(f"weights did not come within {self._timeout_s:g} s") from error
        self._version = version
        return figures

    async def close(self) -> None:
        actor, self._actor = self._actor, None
        if actor is not None:
            with suppress(Exception):  # engines may have processes of their own
                await asyncio.wait_for(actor.do("close"), _CLOSE_S)
            actor.kill()
        give_back([self._place])

    async def _ask(self, verb: str, *arguments: Any) -> Any:
        actor = self._actor
        if actor is None:
            raise Lost("the engine's process is gone")
        try:
            return await actor.do(verb, *arguments)
        except Lost:
            self._forget(actor)
            raise

    def _forget(self, actor: Actor | None) -> None:
        """It may only be out of reach, and would come back with what nobody wants any more."""
        if actor is not None:
            actor.kill()
        if self._actor is actor:
            self._actor = None
