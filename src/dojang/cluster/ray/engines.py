"""Runs an inference engine in a Ray actor.

A lost actor is replaced at the next `load`, which the engine pool calls for engines that failed. A new actor starts
from the model's files, so it refuses requests until it has loaded the expected weights version.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from dojang.cluster.ray.actors import Actor, ActorLost, start_actor
from dojang.cluster.ray.object_store import LatestWeights, PublishedWeights, ReceivedWeights, get_weights
from dojang.cluster.ray.placement import NODE_TIMEOUT_S, Placement, release
from dojang.core.errors import RanksLost
from dojang.protocols import RolloutEngine
from dojang.types import Completion, Metrics, Sampling
from dojang.weight_sync.pack import decode

__all__ = ["RayEngine", "Sampler"]

logger = logging.getLogger(__name__)
_CLOSE_S = 30.0
_RETRY_S = 5.0
"""Seconds before a lost actor is started again."""


class Sampler:
    """The engine inside the actor. Refuses requests until it has the weights version they need, or a later one: an
    engine samples while it loads."""

    def __init__(self, engine: RolloutEngine, weights: ReceivedWeights) -> None:
        self._engine, self._weights = engine, weights
        self._version: int | None = None

    async def generate(self, version: int, prompt: Sequence[int], n: int, sampling: Sampling) -> list[Completion]:
        if self._version is None or self._version < version:
            raise RuntimeError(f"the engine has weights version {self._version}, not {version}")
        return await self._engine.generate(prompt, n, sampling)

    async def load(self, version: int, arrays: Any) -> Metrics | None:
        self._weights.publish(version, get_weights(arrays))
        return await self._load(version)

    async def load_delta(self, version: int, data: Any) -> tuple[bool, Metrics | None]:
        """Loads a version from a pack. False if it does not fit, and full weights are needed."""
        try:
            self._weights.receive(await asyncio.to_thread(decode, data))
            return True, await self._load(version)
        except (LookupError, ValueError) as error:
            logger.warning("loading the full weights of version %d: %s", version, error)
            return False, None

    async def load_factors(self, version: int, data: Any, base: Any = None) -> tuple[bool, Metrics | None]:
        """Loads a version from LoRA factors and base weights, which are kept. False if the base weights are missing, or
        if the merged weights are not those of the trainer."""
        lora_base = self._weights.lora_base
        try:
            pack = await asyncio.to_thread(decode, data)
            if base is not None and not lora_base.fits(pack):
                await asyncio.to_thread(lora_base.hold, get_weights(base))
            if not lora_base.fits(pack):
                return False, None
            await asyncio.to_thread(self._weights.receive, pack)
        except ValueError as error:
            logger.warning("cannot add the LoRA factors of version %d: %s", version, error)
            return False, None
        return True, await self._load(version)

    async def _load(self, version: int) -> Metrics | None:
        try:
            metrics = await self._engine.load(version)
        finally:
            self._weights.release()
        self._version = version
        return metrics

    async def close(self) -> None:
        await self._engine.close()


class RayEngine:
    """A RolloutEngine that forwards to a Sampler in an actor."""

    def __init__(
        self, factory: Callable[[], Sampler], placement: Placement, weights: LatestWeights, timeout_s: float
    ) -> None:
        """`timeout_s` limits the start of an actor, and each load of weights."""
        self._factory, self._placement, self._weights, self._timeout_s = factory, placement, weights, timeout_s
        self._actor: Actor | None = None
        self._version = -1

    async def generate(self, prompt: Sequence[int], n: int, sampling: Sampling) -> list[Completion]:
        found: list[Completion] = await self._call("generate", self._version, tuple(prompt), n, sampling)
        return found

    async def load(self, version: int) -> Metrics | None:
        weights = self._weights.find(version)
        if self._actor is not None:
            with suppress(ActorLost):  # lost since the last request: replace it, it may be the only engine
                return await self._load(version, weights)
        try:
            if self._actor is None:
                self._actor = await self._start()
            return await self._load(version, weights)
        except ActorLost as error:  # the node that holds the weights may be lost as well
            raise RanksLost(f"an engine could not load new weights ({error})") from error

    async def _start(self) -> Actor:
        """Starts an actor. If its node is lost, retries until Ray has noticed that."""
        started = time.monotonic()
        while True:
            actor = start_actor(self._placement, "Engine")
            try:
                async with asyncio.timeout(self._timeout_s):
                    await actor.prepare(self._factory)
            except BaseException as error:
                actor.kill()
                if isinstance(error, TimeoutError):
                    raise ActorLost(f"it did not start within {self._timeout_s:g} s") from error
                if not isinstance(error, ActorLost) or time.monotonic() - started > NODE_TIMEOUT_S:
                    raise
                await asyncio.sleep(_RETRY_S)
            else:
                self._version = -1  # it has the model's own weights
                return actor

    async def _load(self, version: int, weights: PublishedWeights) -> Metrics | None:
        metrics: Metrics | None = None
        loaded = False
        try:
            async with asyncio.timeout(self._timeout_s):
                if weights.factors is not None:
                    loaded, metrics = await self._load_factors(version, weights)
                elif weights.delta is not None and weights.base == self._version:
                    loaded, metrics = await self._call("load_delta", version, weights.delta)
                if not loaded:
                    whole = weights.whole if weights.factors is None else await self._weights.merged(version)
                    metrics = await self._call("load", version, whole)
        except TimeoutError as error:
            self._drop(self._actor)
            raise ActorLost(f"weights did not arrive within {self._timeout_s:g} s") from error
        self._version = version
        return metrics

    async def _load_factors(self, version: int, weights: PublishedWeights) -> tuple[bool, Metrics | None]:
        """Sends LoRA factors, and the base weights if the engine lacks them. False if it cannot add them."""
        loaded, metrics = await self._call("load_factors", version, weights.factors)
        if not loaded:
            loaded, metrics = await self._call("load_factors", version, weights.factors, weights.whole)
        return loaded, metrics

    async def close(self) -> None:
        actor, self._actor = self._actor, None
        if actor is not None:
            with suppress(Exception):  # lets the engine end its own processes
                await asyncio.wait_for(actor.call("close"), _CLOSE_S)
            actor.kill()
        release([self._placement])

    async def _call(self, method: str, *arguments: Any) -> Any:
        actor = self._actor
        if actor is None:
            raise ActorLost("the engine's process is gone")
        try:
            return await actor.call(method, *arguments)
        except ActorLost:
            self._drop(actor)
            raise

    def _drop(self, actor: Actor | None) -> None:
        """Kills the actor: it may only be unreachable, and could come back with outdated results."""
        if actor is not None:
            actor.kill()
        if self._actor is actor:
            self._actor = None
