"""Models that learn side by side, each from the samples of its own role.

The first one's figures and checkpoint are where a single model's would be; those of the others are under their role's
name. In a step that has nothing to teach a model, it takes none: it learns as it would alone.

Where the trainers of each role are processes of their own, with devices of their own (on Ray), all roles work at the
same time; in one process they take turns.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from dojang.core.errors import TrainingError
from dojang.protocols import Algorithm, Trainer
from dojang.types import Group, Metrics, Sample

__all__ = ["Roles"]

T = TypeVar("T")


class Roles:
    """A Trainer made of one for each role."""

    def __init__(self, trainers: Mapping[str, Trainer], algorithm: Algorithm, *, concurrent: bool = False) -> None:
        """`algorithm`: that of all of them, or one like it. `concurrent` if the trainers share no device."""
        self._trainers, self._algorithm, self._concurrent = trainers, algorithm, concurrent
        self._first = next(iter(trainers))
        self._due: list[str] = []
        """Those that have a gradient."""

    async def forward_backward(self, groups: Sequence[Group]) -> Metrics:
        played = {role: [group.of(role) for group in groups] for role in self._trainers}
        self._due = [role for role, own in played.items() if any(map(self._has_gradient, own))]
        return await self._figures(
            {role: partial(self._trainers[role].forward_backward, played[role]) for role in self._due}
        )

    async def optim_step(self) -> Metrics:
        due, self._due = self._due, []
        figures = await self._figures({role: self._trainers[role].optim_step for role in due})
        await self._run({role: partial(each.skip_steps, 1) for role, each in self._trainers.items() if role not in due})
        return figures

    async def skip_steps(self, count: int) -> None:
        await self._run({role: partial(each.skip_steps, count) for role, each in self._trainers.items()})

    async def score(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        return await self._of_each("score", samples)

    async def appraise(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        return await self._of_each("appraise", samples)

    async def ref_logprobs(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        return await self._of_each("ref_logprobs", samples)

    async def teacher_logprobs(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        return await self._of_each("teacher_logprobs", samples)

    async def publish(self) -> int:
        """The version of the first; the others' stores know theirs."""
        versions = await self._run({role: trainer.publish for role, trainer in self._trainers.items()})
        return versions[self._first]

    async def save(self, path: Path) -> None:
        for role in self._trainers:
            self._place(path, role).mkdir(exist_ok=True)
        await self._run({role: partial(each.save, self._place(path, role)) for role, each in self._trainers.items()})

    async def restore(self, path: Path) -> None:
        await self._run({role: partial(each.restore, self._place(path, role)) for role, each in self._trainers.items()})

    async def close(self) -> None:
        for trainer in self._trainers.values():
            await trainer.close()

    def _has_gradient(self, group: Group) -> bool:
        has_tokens = any(any(sample.mask) for sample in group.samples)
        return has_tokens and (self._algorithm.trains_zero_advantage or group.has_advantage)

    def _place(self, path: Path, role: str) -> Path:
        return path if role == self._first else path / role

    async def _run(self, work: Mapping[str, Callable[[], Awaitable[T]]]) -> dict[str, T]:
        """Results by role. If some fail, the first one's error is raised when all have ended."""
        if not self._concurrent:
            return {role: await begin() for role, begin in work.items()}
        ended = await asyncio.gather(*(begin() for begin in work.values()), return_exceptions=True)
        found: dict[str, T] = {}
        for role, result in zip(work, ended, strict=True):
            if isinstance(result, BaseException):
                raise result
            found[role] = result
        return found

    async def _figures(self, work: Mapping[str, Callable[[], Awaitable[Metrics]]]) -> Metrics:
        """Metrics of all roles in one."""
        named = {role: partial(self._named, role, begin) for role, begin in work.items()}
        return {name: value for figures in (await self._run(named)).values() for name, value in figures.items()}

    async def _named(self, role: str, begin: Callable[[], Awaitable[Metrics]]) -> Metrics:
        """The figures of one of them; what goes wrong is its own."""
        if role == self._first:
            return await begin()
        try:
            return {f"{role}/{name}": value for name, value in (await begin()).items()}
        except TrainingError as error:
            raise TrainingError(f"the {role}: {error}") from error

    async def _of_each(self, verb: str, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        """What each trainer says of its own samples, in the order of all."""
        places = {role: [at for at, sample in enumerate(samples) if sample.role == role] for role in self._trainers}
        told = await self._run(
            {
                role: partial(getattr(self._trainers[role], verb), [samples[at] for at in own])
                for role, own in places.items()
                if own
            }
        )
        found = {at: values for role, own in told.items() for at, values in zip(places[role], own, strict=True)}
        return [found[at] for at in range(len(samples))]
