"""Turns of several conversations, taken together.

What is asked of an engine in one turn of the event loop is decoded as one batch. Conversations of several turns go on
when their answers come and their programs are judged, which the clock decides, and with it the company in which tokens
are drawn, and their last bits. So everybody waits until nobody is being answered; then all go on at once, in a fixed
order. A run then repeats, and resumes, token by token.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Rounds"]


class Rounds:
    """Shared by all conversations of a workflow."""

    def __init__(self) -> None:
        self._present = 0
        self._waiting: dict[asyncio.Future[None], int] = {}

    @contextmanager
    def present(self) -> Iterator[None]:
        """Whoever is inside is waited for."""
        self._present += 1
        try:
            yield
        finally:
            self._present -= 1
            self._look()

    async def turn(self, place: int) -> None:
        """Wait until everybody does; lower places go on before higher ones."""
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[mine] = place
        self._look()
        try:
            await mine
        finally:
            self._waiting.pop(mine, None)

    def _look(self) -> None:
        if self._waiting and len(self._waiting) >= self._present:
            # Later, so that the last one to come wakes up with the others.
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        if len(self._waiting) < self._present:  # somebody came in between
            return
        for mine in sorted(self._waiting, key=self._waiting.__getitem__):
            if not mine.done():
                mine.set_result(None)
        self._waiting.clear()
