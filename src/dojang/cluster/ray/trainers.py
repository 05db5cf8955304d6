"""A Trainer whose ranks are Ray actors.

Every call goes to all ranks at once; they communicate through their own process group. If one rank is lost, all are
killed, and the run restarts from its last checkpoint (`RanksLost`).
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

import ray

from dojang.cluster.ray.actors import Actor, ActorLost, gather, start_actor
from dojang.cluster.ray.file_transfer import FileTransfer, fetch_folder, send_folder
from dojang.cluster.ray.object_store import PublishedWeights, put_pack, put_weights
from dojang.cluster.ray.placement import Placement, release
from dojang.core.errors import DojangError, RanksLost
from dojang.protocols import Trainer
from dojang.trainer.forwarding import ForwardingTrainer
from dojang.weight_sync.pack import Pack
from dojang.weight_sync.versions import WeightVersions

__all__ = ["Rank", "RayTrainer", "set_rank_environment"]

_BETTER_ERROR_S = 5.0
"""Seconds to wait, after one rank failed, for another rank with a more specific error."""

OnPublish = Callable[[int, PublishedWeights, Actor], Coroutine[Any, Any, None]]
"""Receives a version, the object references of its weights, and the actor that put them there."""


def set_rank_environment(rank: int, world: int, address: tuple[str, int]) -> None:
    """Sets torch.distributed's variables. Ray gives each process its own GPUs, so LOCAL_RANK is always 0."""
    host, port = address
    os.environ.update(RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(world), LOCAL_WORLD_SIZE="1")
    os.environ.update(MASTER_ADDR=host, MASTER_PORT=str(port))


class Rank(FileTransfer, ForwardingTrainer):
    """One rank of the trainer, inside its actor."""

    def __init__(self, trainer: Trainer, weights: WeightVersions) -> None:
        super().__init__()
        self._trainer, self._weights = trainer, weights
        self._published: int | None = None
        self._lora_base: Any = None
        """Object reference of the base weights of LoRA."""
        self._base_checksum = ""

    async def publish_and_put(self, version: int, first: bool) -> PublishedWeights | None:
        """Publishes; returns the object references of the weights if this is the first rank."""
        await self._trainer.publish(version)
        if not first:
            return None
        base, self._published = self._published, version
        if (factors := self._weights.factors(version)) is not None:
            return self._put_factors(factors)
        whole = put_weights(self._weights.fetch(version))
        pack = None if base is None else self._weights.delta(base, version)
        return PublishedWeights(whole, base, put_pack(pack)) if pack else PublishedWeights(whole)

    def _put_factors(self, pack: Pack) -> PublishedWeights:
        if pack.base_checksum != self._base_checksum:
            self._lora_base = put_weights(self._weights.pack(pack.version).tensors)
            self._base_checksum = pack.base_checksum
        return PublishedWeights(self._lora_base, factors=put_pack(pack))

    def put_merged(self, version: int) -> Any:
        """Returns the object reference of a version with LoRA factors merged."""
        return put_weights(self._weights.fetch(version))

    async def _call(self, method: str, *arguments: Any) -> Any:
        return await getattr(self._trainer, method)(*arguments)


class RayTrainer(ForwardingTrainer):
    """A Trainer that forwards to Ranks in actors."""

    def __init__(
        self,
        factory: Callable[[int, tuple[str, int]], Callable[[], Rank]],
        placements: Sequence[Placement],
        on_publish: OnPublish,
        timeout_s: float,
    ) -> None:
        """`factory` takes a rank and the first rank's address, and returns a function that makes the Rank."""
        self._placements, self._on_publish = placements, on_publish
        self._ranks = [start_actor(placement, "Trainer") for placement in placements]
        try:
            for each in self._ranks:
                each.resolve_node(self._ranks, timeout_s)
            (address,) = gather(self._ranks, [self._ranks[0].address()], timeout_s)
            made = [each.make(factory(at, address)) for at, each in enumerate(self._ranks)]
            gather(self._ranks, made, timeout_s)
        except BaseException as error:
            self._kill()
            port_taken = "address already in use" in str(error)  # by another process, since it was found free
            if isinstance(error, ActorLost) or port_taken:
                raise RanksLost(f"a trainer ended during its start ({error})") from error
            raise

    async def publish(self, version: int) -> None:
        calls = (each.call("publish_and_put", version, at == 0) for at, each in enumerate(self._ranks))
        weights = (await self._gather(calls))[0]
        await self._watch_for_loss(self._on_publish(version, weights, self._ranks[0]))

    async def save(self, path: Path) -> None:
        if await self._share_directory(path):
            return await super().save(path)
        folders = await self._gather(each.call("make_folder") for each in self._ranks)
        await self._each("save", folders)
        for each, folder in zip(self._ranks, folders, strict=True):
            await self._watch_for_loss(fetch_folder(each, folder, path))

    async def restore(self, path: Path) -> None:
        if await self._share_directory(path):
            return await super().restore(path)
        folders = await self._gather(each.call("make_folder") for each in self._ranks)
        await self._watch_for_loss(send_folder(path, list(zip(self._ranks, folders, strict=True))))
        await self._each("restore", folders)
        await self._each("remove", folders)

    async def close(self) -> None:
        self._kill()

    async def _call(self, method: str, *arguments: Any) -> Any:
        sent = [ray.put(each) for each in arguments]  # samples are large: stored once, not once per rank
        return (await self._gather(each.call(method, *sent) for each in self._ranks))[0]

    async def _each(self, method: str, folders: Sequence[Path]) -> None:
        """Calls a method on every rank with the rank's own folder."""
        await self._gather(each.call(method, folder) for each, folder in zip(self._ranks, folders, strict=True))

    async def _share_directory(self, path: Path) -> bool:
        """Reports whether all ranks see this directory; otherwise files must be transferred."""
        path.mkdir(parents=True, exist_ok=True)
        marker = path / ".seen"
        marker.write_text(token := os.urandom(8).hex())
        try:
            return set(await self._gather(each.call("read_text", marker) for each in self._ranks)) == {token}
        finally:
            marker.unlink()

    async def _gather(self, asked: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
        """Results of all calls. If one fails, kills all ranks."""
        tasks = [asyncio.ensure_future(each) for each in asked]
        found: list[Any] = await self._watch_for_loss(_gather_or_best_error(tasks))
        return found

    async def _watch_for_loss(self, work: Any) -> Any:
        try:
            return await work
        except ActorLost as error:
            self._kill()
            raise RanksLost(f"a trainer was lost ({error})") from error
        except DojangError:
            self._kill()
            raise
        except RuntimeError as error:
            self._kill()
            if len(self._placements) > 1 and any(word in str(error) for word in ("gloo", "onnection", "NCCL")):
                raise RanksLost("a trainer lost its connection to another") from error
            raise

    def _kill(self) -> None:
        for each in self._ranks:
            each.kill()
        release(self._placements)


async def _gather_or_best_error(tasks: "Sequence[asyncio.Future[Any]]") -> list[Any]:
    """All results, or the most specific failure: a lost connection usually follows from another rank's error."""
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        if any(task.done() and task.exception() for task in tasks):
            await asyncio.wait(tasks, timeout=_BETTER_ERROR_S)
        failures = [error for task in tasks if task.done() and (error := task.exception())]
        for kind in (DojangError, ActorLost, Exception):
            for error in failures:
                if isinstance(error, kind):
                    raise error
        return [task.result() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
