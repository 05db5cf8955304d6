"""The server inside a run, on a loopback address."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from dojang.core.errors import ConfigError
from dojang.core.http_service import HttpServer, address_of, open_listener

if TYPE_CHECKING:
    from starlette.applications import Starlette

__all__ = ["LocalServer", "serving"]

_START_S = 0.005


@asynccontextmanager
async def serving(app: "Starlette", host: str, port: int) -> AsyncIterator[str]:
    """Serves an application; yields its URL. Raises ConfigError if it cannot listen."""
    listener = open_listener(host, port)
    server = HttpServer(app)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started and not running.done():
            await asyncio.sleep(_START_S)
        yield address_of(listener)
    finally:
        server.should_exit = True
        await running
        listener.close()


class LocalServer:
    """A server that runs while it is used: a workflow has no end at which it could be stopped."""

    def __init__(self, make: Callable[[], "Starlette"]) -> None:
        self._make = make
        self._port = 0
        """Port of the last time: clients that live longer keep a pool of connections for every address."""
        self._users = 0
        self._started: asyncio.Future[str] | None = None
        self._stop: asyncio.Event | None = None
        self._running: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Starts the server for the first user, and stops it after the last; yields its URL."""
        self._users += 1
        if self._started is None:
            self._started, self._stop = asyncio.get_running_loop().create_future(), asyncio.Event()
            self._running = asyncio.create_task(self._run(self._started, self._stop))
        try:
            yield await asyncio.shield(self._started)
        finally:
            self._users -= 1
            if self._users == 0 and self._stop is not None and self._running is not None:
                self._stop.set()
                running, self._started = self._running, None
                await running

    async def _run(self, started: "asyncio.Future[str]", stop: asyncio.Event) -> None:
        try:
            async with serving(self._make(), "127.0.0.1", self._free_port()) as url:
                self._port = int(url.rpartition(":")[2])
                started.set_result(url)
                await stop.wait()
        except Exception as error:  # every user gets it
            if started.done():
                raise
            started.set_exception(error)

    def _free_port(self) -> int:
        """Returns the port of the last time, or 0 if another process has it now."""
        try:
            open_listener("127.0.0.1", self._port).close()
        except ConfigError:
            return 0
        return self._port
