"""Multi-policy training: one trainer per role, each trained on the samples of its role.

Metrics and checkpoint of the first role are where those of a single model would be; those of the others are under the
name of the role. A model without a gradient in a step skips it, as it would in a run of one model.

Roles with separate processes and devices (on Ray) train concurrently; in one process they take turns.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from dojang.core.errors import TrainingError
from dojang.protocols import Algorithm, TokenValues, Trainer
from dojang.trainer.forwarding import ForwardingTrainer
from dojang.types import Group, Metrics

__all__ = ["MultiPolicyTrainer"]

T = TypeVar("T")


class MultiPolicyTrainer(ForwardingTrainer):
    """A Trainer that forwards to the trainer of each role."""

    def __init__(self, trainers: Mapping[str, Trainer], algorithm: Algorithm, *, concurrent: bool = False) -> None:
        """`algorithm` says which groups have a gradient. Set `concurrent` if the trainers share no device."""
        self._trainers, self._algorithm, self._concurrent = trainers, algorithm, concurrent
        self._first = next(iter(trainers))
        self._with_gradient: list[str] = []
        """Roles with a gradient."""

    async def forward_backward(self, groups: Sequence[Group]) -> Metrics:
        played = {role: [group.of(role) for group in groups] for role in self._trainers}
        self._with_gradient = [role for role, own in played.items() if any(map(self._has_gradient, own))]
        return await self._figures(
            {role: partial(self._trainers[role].forward_backward, played[role]) for role in self._with_gradient}
        )

    async def optim_step(self) -> Metrics:
        due, self._with_gradient = self._with_gradient, []
        figures = await self._figures({role: self._trainers[role].optim_step for role in due})
        await self._run({role: partial(each.skip_steps, 1) for role, each in self._trainers.items() if role not in due})
        return figures

    async def skip_steps(self, count: int) -> None:
        await self._run({role: partial(each.skip_steps, count) for role, each in self._trainers.items()})

    async def take_token_values(self) -> list[TokenValues]:
        told = await self._run({role: each.take_token_values for role, each in self._trainers.items()})
        return [values for own in told.values() for values in own]

    async def publish(self, version: int) -> None:
        await self._run({role: partial(each.publish, version) for role, each in self._trainers.items()})

    async def save(self, path: Path) -> None:
        for role in self._trainers:
            self._checkpoint_dir(path, role).mkdir(exist_ok=True)
        await self._run(
            {role: partial(each.save, self._checkpoint_dir(path, role)) for role, each in self._trainers.items()}
        )

    async def restore(self, path: Path) -> None:
        await self._run(
            {role: partial(each.restore, self._checkpoint_dir(path, role)) for role, each in self._trainers.items()}
        )

    async def close(self) -> None:
        for trainer in self._trainers.values():
            await trainer.close()

    def _has_gradient(self, group: Group) -> bool:
        has_tokens = any(sample.mask.any() for sample in group.samples)
        return has_tokens and (self._algorithm.requirements.zero_advantage or group.has_advantage)

    def _checkpoint_dir(self, path: Path, role: str) -> Path:
        return path if role == self._first else path / role

    async def _run(self, work: Mapping[str, Callable[[], Awaitable[T]]]) -> dict[str, T]:
        """Runs work per role; returns results by role. Raises the first error after all have ended."""
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
        """Metrics of all roles in one mapping."""
        named = {role: partial(self._named, role, begin) for role, begin in work.items()}
        return {name: value for figures in (await self._run(named)).values() for name, value in figures.items()}

    async def _named(self, role: str, begin: Callable[[], Awaitable[Metrics]]) -> Metrics:
        """Metrics of one role, prefixed with its name; errors name the role too."""
        if role == self._first:
            return await begin()
        try:
            figures = await begin()
        except TrainingError as error:
            raise TrainingError(f"the {role}: {error}") from error
        # perf/ is of the process, which the first role has told.
        return {f"{role}/{name}": value for name, value in figures.items() if not name.startswith("perf/")}

    async def _call(self, method: str, *arguments: Any) -> list[tuple[float, ...]]:
        """The methods that take samples: each role's trainer gets its own; results are in the order of all samples."""
        (samples,) = arguments
        places = {role: [at for at, sample in enumerate(samples) if sample.role == role] for role in self._trainers}
        told = await self._run(
            {
                role: partial(getattr(self._trainers[role], method), [samples[at] for at in own])
                for role, own in places.items()
                if own
            }
        )
        found = {at: values for role, own in told.items() for at, values in zip(places[role], own, strict=True)}
        return [found[at] for at in range(len(samples))]
