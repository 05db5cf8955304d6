"""Models that learn side by side, each from the samples of its own role.

The first one's figures and checkpoint are where a single model's would be; those of the others are under their role's
name. In a step that has nothing to teach a model, it takes none: it learns as it would alone.
"""

from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path

from dojang.errors import TrainingError
from dojang.protocols import Trainer
from dojang.types import Group, Metrics, Sample

__all__ = ["Roles"]


class Roles:
    """A Trainer made of one for each role."""

    def __init__(self, trainers: Mapping[str, Trainer]) -> None:
        self._trainers = trainers
        self._first = next(iter(trainers))
        self._due: list[str] = []
        """Those that have a gradient."""

    async def forward_backward(self, groups: Sequence[Group]) -> Metrics:
        self._due, found = [], dict[str, float]()
        for role, trainer in self._trainers.items():
            played = [group.of(role) for group in groups]
            if own := [group for group in played if any(sample.advantage for sample in group.samples)]:
                found |= await self._named(role, trainer.forward_backward(own))
                self._due.append(role)
        return found

    async def optim_step(self) -> Metrics:
        found = dict[str, float]()
        for role in self._due:
            found |= await self._named(role, self._trainers[role].optim_step())
        self._due = []
        return found

    async def score(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        return await self._of_each("score", samples)

    async def appraise(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        return await self._of_each("appraise", samples)

    async def publish(self) -> int:
        """The version of the first; the others' stores know theirs."""
        versions = {role: await trainer.publish() for role, trainer in self._trainers.items()}
        return versions[self._first]

    async def save(self, path: Path) -> None:
        for role, trainer in self._trainers.items():
            place = self._place(path, role)
            place.mkdir(exist_ok=True)
            await trainer.save(place)

    async def restore(self, path: Path) -> None:
        for role, trainer in self._trainers.items():
            await trainer.restore(self._place(path, role))

    async def close(self) -> None:
        for trainer in self._trainers.values():
            await trainer.close()

    def _place(self, path: Path, role: str) -> Path:
        return path if role == self._first else path / role

    async def _named(self, role: str, work: Awaitable[Metrics]) -> Metrics:
        """The figures of one of them; what goes wrong is its own."""
        if role == self._first:
            return await work
        try:
            return {f"{role}/{name}": value for name, value in (await work).items()}
        except TrainingError as error:
            raise TrainingError(f"the {role}: {error}") from error

    async def _of_each(self, verb: str, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        """What each trainer says of its own samples, in the order of all."""
        found: dict[int, tuple[float, ...]] = {}
        for role, trainer in self._trainers.items():
            places = [at for at, sample in enumerate(samples) if sample.role == role]
            if places:
                told = await getattr(trainer, verb)([samples[at] for at in places])
                found |= dict(zip(places, told, strict=True))
        return [found[at] for at in range(len(samples))]
