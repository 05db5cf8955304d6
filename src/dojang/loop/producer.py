"""Interface of the producers of batches: whole batches (batch_producer.py), or groups as they finish
(stream_producer.py)."""

from types import TracebackType
from typing import Protocol, Self

from dojang.loop.rollout import Batch
from dojang.loop.run_state import State

__all__ = ["Producer"]


class Producer(Protocol):
    """Produces the batches of a run in the background, in order. Leaving its context ends all rollouts."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def load(self, version: int) -> None:
        """Loads a version into the engine, unless it holds it already."""

    async def announce(self, version: int) -> None:
        """Allows rollouts with this version, which was published. Starts the rollouts the first time."""

    async def next_batch(self) -> Batch:
        """Returns the next batch, as soon as it is ready. It stays pending until `learned` is called."""

    def learned(self) -> None:
        """Records that the trainer has learned from the batch that `next_batch` returned."""

    async def settle(self) -> None:
        """Waits until the run can be evaluated and saved."""

    async def drain(self, version: int, limit_s: float) -> bool:
        """Waits for rollouts that cannot be repeated with `version`; returns False if the time is over before."""

    def snapshot(self, state: State) -> State:
        """Returns the state with the rollouts that wait for their update, for a checkpoint."""

    async def saved(self, state: State) -> None:
        """Called after a checkpoint with this snapshot was written."""

    @property
    def settled(self) -> int:
        """A number that grows with every finished rollout (watchdog.py)."""

    def describe(self) -> str:
        """Says what the next batch lacks, and who has it (watchdog.py)."""
