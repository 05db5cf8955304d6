"""Barrier between the turns of concurrent conversations, so that multi-turn sampling is reproducible.

An engine decodes the requests of one iteration of the event loop as one batch, and the batch affects the last bits of
the logits. Without a barrier, the time that generation and judging take would decide which requests share a batch. So
all conversations wait until no request is running; then all continue at once, in a fixed order. A run then repeats, and
resumes, with the same tokens.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["TurnBarrier"]


class TurnBarrier:
    """Barrier shared by all conversations of a workflow."""

    def __init__(self) -> None:
        self._active = 0
        self._waiting: dict[asyncio.Future[None], int] = {}

    @contextmanager
    def active(self) -> Iterator[None]:
        """Registers a conversation; the others wait for its turns."""
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1
            self._release_when_all_wait()

    async def wait_turn(self, place: int) -> None:
        """Waits until all active conversations wait; they continue in the order of `place`."""
        ticket: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = place
        self._release_when_all_wait()
        try:
            await ticket
        finally:
            self._waiting.pop(ticket, None)

    def _release_when_all_wait(self) -> None:
        if self._waiting and len(self._waiting) >= self._active:
            # Deferred, so that the last conversation to arrive resumes together with the others.
            asyncio.get_running_loop().call_soon(self._release)

    def _release(self) -> None:
        if len(self._waiting) < self._active:  # another conversation entered meanwhile
            return
        for ticket in sorted(self._waiting, key=self._waiting.__getitem__):
            if not ticket.done():
                ticket.set_result(None)
        self._waiting.clear()
