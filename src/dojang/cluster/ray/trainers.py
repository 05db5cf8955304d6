"""A trainer whose ranks are processes elsewhere.

Every rank is told the same, at the same time; what they have to tell each other is the trainers' own business. If one
of them is lost the others cannot go on, so all end, and the run begins again at its last checkpoint (`RanksLost`).
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

import ray

from dojang.cluster.ray.actors import Actor, Lost, gather, spawn
from dojang.cluster.ray.file_transfer import Luggage, bring, fetch
from dojang.cluster.ray.object_store import lay_down
from dojang.cluster.ray.placement import Place, give_back
from dojang.core.errors import DojangError, RanksLost
from dojang.protocols import Trainer, WeightStore
from dojang.types import Group, Metrics, Sample

__all__ = ["Rank", "RayTrainer", "enter"]

_LAST_WORDS_S = 5.0
"""How long to wait, when one rank fails, for another that knows better why."""

Deliver = Callable[[int, Any, Actor], Coroutine[Any, Any, None]]
"""Takes a version, where in the object store its weights are, and who put them there."""


def enter(rank: int, world: int, address: tuple[str, int]) -> None:
    """Say to torch which of the processes this is. Each has GPUs of its own, so each is the first on its machine."""
    host, port = address
    os.environ.update(RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(world), LOCAL_WORLD_SIZE="1")
    os.environ.update(MASTER_ADDR=host, MASTER_PORT=str(port))


class Rank(Luggage):
    """The trainer's side: one of the processes that train."""

    def __init__(self, trainer: Trainer, weights: WeightStore) -> None:
        super().__init__()
        self._trainer, self._weights = trainer, weights

    async def forward_backward(self, groups: Sequence[Group]) -> Metrics:
        return await self._trainer.forward_backward(groups)

    async def optim_step(self) -> Metrics:
        return await self._trainer.optim_step()

    async def skip_steps(self, count: int) -> None:
        await self._trainer.skip_steps(count)

    async def score(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        return await self._trainer.score(samples)

    async def appraise(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        return await self._trainer.appraise(samples)

    async def ref_logprobs(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        return await self._trainer.ref_logprobs(samples)

    async def teacher_logprobs(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        return await self._trainer.teacher_logprobs(samples)

    async def publish(self, first: bool) -> tuple[int, list[Any]]:
        """The version, and where the first rank has put its weights."""
        version = await self._trainer.publish()
        return version, [lay_down(self._weights.fetch(version))] if first else []

    async def save(self, path: Path) -> None:
        await self._trainer.save(path)

    async def restore(self, path: Path) -> None:
        await self._trainer.restore(path)


class RayTrainer:
    """A Trainer made of Ranks."""

    def __init__(
        self,
        factory: Callable[[int, tuple[str, int]], Callable[[], Rank]],
        places: Sequence[Place],
        deliver: Deliver,
        timeout_s: float,
    ) -> None:
        """`factory` is told a rank and where the first one can be met, and gives what makes it."""
        self._places, self._deliver = places, deliver
        self._ranks = [spawn(place, "Trainer") for place in places]
        try:
            for each in self._ranks:
                each.locate(self._ranks, timeout_s)
            (address,) = gather(self._ranks, [self._ranks[0].address()], timeout_s)
            made = [each.make(factory(at, address)) for at, each in enumerate(self._ranks)]
            gather(self._ranks, made, timeout_s)
        except BaseException as error:
            self._end()
            if isinstance(error, Lost) or "address already in use" in str(
                error
            ):  # somebody was faster to take the port
                raise RanksLost(f"a trainer ended before it had begun ({error})") from error
            raise

    async def forward_backward(self, groups: Sequence[Group]) -> Metrics:
        metrics: Metrics = await self._all("forward_backward", ray.put(groups))
        return metrics

    async def optim_step(self) -> Metrics:
        metrics: Metrics = await self._all("optim_step")
        return metrics

    async def skip_steps(self, count: int) -> None:
        await self._all("skip_steps", count)

    async def score(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        found: list[tuple[float, ...]] = await self._all("score", ray.put(samples))
        return found

    async def appraise(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        found: list[tuple[float, ...]] = await self._all("appraise", ray.put(samples))
        return found

    async def ref_logprobs(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        found: list[tuple[float, ...]] = await self._all("ref_logprobs", ray.put(samples))
        return found

    async def teacher_logprobs(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        found: list[tuple[float, ...]] = await self._all("teacher_logprobs", ray.put(samples))
        return found

    async def publish(self) -> int:
        version, references = (await self._of(each.do("publish", at == 0) for at, each in enumerate(self._ranks)))[0]
        await self._safely(self._deliver(version, references[0], self._ranks[0]))
        return int(version)

    async def save(self, path: Path) -> None:
        if await self._sees(path):
            await self._all("save", path)
            return
        folders = await self._of(each.do("unpack") for each in self._ranks)
        await self._each("save", folders)
        for each, folder in zip(self._ranks, folders, strict=True):
            await self._safely(fetch(each, folder, path))

    async def restore(self, path: Path) -> None:
        if await self._sees(path):
            await self._all("restore", path)
            return
        folders = await self._of(each.do("unpack") for each in self._ranks)
        await self._safely(bring(path, list(zip(self._ranks, folders, strict=True))))
        await self._each("restore", folders)
        await self._each("discard", folders)

    async def close(self) -> None:
        self._end()

    async def _all(self, verb: str, *arguments: Any) -> Any:
        return (await self._of(each.do(verb, *arguments) for each in self._ranks))[0]

    async def _each(self, verb: str, folders: Sequence[Path]) -> None:
        """With a folder of its own for every rank."""
        await self._of(each.do(verb, folder) for each, folder in zip(self._ranks, folders, strict=True))

    async def _sees(self, path: Path) -> bool:
        """Whether all ranks find the same directory there; if not, files must travel."""
        path.mkdir(parents=True, exist_ok=True)
        sign = path / ".seen"
        sign.write_text(word := os.urandom(8).hex())
        try:
            return set(await self._of(each.do("reads", sign) for each in self._ranks)) == {word}
        finally:
            sign.unlink()

    async def _of(self, asked: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
        """What all answer. If one fails, none is left."""
        tasks = [asyncio.ensure_future(each) for each in asked]
        found: list[Any] = await self._safely(_together(tasks))
        return found

    async def _safely(self, work: Any) -> Any:
        try:
            return await work
        except Lost as error:
            self._end()
            raise RanksLost(f"a trainer was lost ({error})") from error
        except DojangError:
            self._end()
            raise
        except RuntimeError as error:
            self._end()
            if len(self._places) > 1 and ("gloo" in str(error) or "onnection" in str(error) or "NCCL" in str(error)):
                raise RanksLost("a trainer lost its connection to another") from error
            raise

    def _end(self) -> None:
        for each in self._ranks:
            each.kill()
        give_back(self._places)


async def _together(tasks: "Sequence[asyncio.Future[Any]]") -> list[Any]:
    """All results, or the failure that says most: those who only lost a connection wait for another's word."""
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        if any(task.done() and task.exception() for task in tasks):
            await asyncio.wait(tasks, timeout=_LAST_WORDS_S)
        failures = [error for task in tasks if task.done() and (error := task.exception())]
        for kind in (DojangError, Lost, Exception):
            for error in failures:
                if isinstance(error, kind):
                    raise error
        return [task.result() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
