"""RolloutWorkers of a run that are other processes: those that it starts, and those of any machine that joins."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from socket import AF_INET, AF_INET6, SOCK_DGRAM, gethostname, socket
from typing import Protocol

from dojang.core.http_service import LOOPBACK, HttpServer, address_of, open_listener
from dojang.loop.rollout_queue import RolloutQueue
from dojang.rollout_service.server import RolloutService, ServedRun
from dojang.types import Metrics

__all__ = ["OnEnd", "ServedWorkers", "StartedWorkers"]

_LEAVE_S = 5.0
"""Seconds for workers to leave at the end of a run."""

OnEnd = Callable[[str, str], bool]
"""Called with the name of a worker that ended and the reason, empty if it did not fail; returns whether another one is
to be started."""


class StartedWorkers(Protocol):
    """Workers that the run itself starts, and starts again when they end too early."""

    @property
    def host(self) -> str:
        """IPv4 address at which they reach this machine."""

    def start(self, url: str, token: str, on_end: OnEnd) -> None:
        """Starts workers that join the run at a URL."""

    def describe(self) -> str:
        """Says which workers have not been started, and why; empty if none. May be called from any thread."""

    async def close(self, limit_s: float) -> None:
        """Ends them, at the latest after this time."""


class ServedWorkers:
    """Serves prompts and weights at one port, and starts workers."""

    def __init__(
        self,
        run: ServedRun,
        host: str,
        port: int,
        started: StartedWorkers,
        announce: Callable[[str], None] = lambda url: None,
    ) -> None:
        """`announce` is called with the URL once workers can join. Port 0 takes any free one."""
        self._run, self._started, self._announce = run, started, announce
        self._host, self._port = host, port
        self._service: RolloutService | None = None
        self._server: HttpServer | None = None
        self._serving: asyncio.Task[None] | None = None
        self._sent = 0

    async def start(self, queue: RolloutQueue) -> None:
        service = self._open()
        service.begin(queue)
        await service.all_joined()  # the trainer's own engine would take their share of the first prompts

    async def publish(self, version: int) -> Metrics:
        """Checks that all policies have published the version. Workers fetch it when the queue has published it, and
        sample no prompt that needs it before. The first call starts workers: they build their parts while the trainer
        evaluates."""
        for policy, weights in self._run.weights.items():
            if version not in weights.held():
                raise LookupError(f"version {version} of {policy} is not published; held are {weights.held()}")
        service = self._open()
        sent, self._sent = self._sent, service.sent_bytes
        return {
            "rollout_service/workers": float(len(service.workers)),
            "rollout_service/sent_bytes": float(self._sent - sent),
        }

    async def close(self) -> None:
        """Ends the workers that it started; others learn that the run has ended. Close the queue before."""
        deadline = time.monotonic() + _LEAVE_S
        if self._service is not None:
            await self._service.all_left(_LEAVE_S)
        await self._started.close(max(0.1, deadline - time.monotonic()))
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving

    def describe(self) -> str:
        return self._started.describe()

    def _open(self) -> RolloutService:
        """Listens, and starts workers, unless that is done."""
        if self._service is not None:
            return self._service
        listener = open_listener(self._host, self._port)
        self._service = RolloutService(self._run)
        self._server = HttpServer(self._service.app())
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        self._announce(_join_url(listener))
        self._started.start(_own_url(listener, self._started.host), self._run.token, self._on_end)
        return self._service

    def _on_end(self, name: str, reason: str) -> bool:
        """Returns the prompts of a worker that ended; reports whether it is started again."""
        assert self._service is not None
        self._service.lost(name)
        if self._service.ended:
            return False
        if reason:
            self._service.failed(name, reason, killed=True)
        return True


def _own_url(listener: socket, host: str) -> str:
    """URL for workers that the run starts, which reach this machine at `host`."""
    url = address_of(listener)
    if "//[::]:" in url:
        return url.replace("[::]", "[::1]") if host in LOOPBACK else _join_url(listener)
    return url.replace("//0.0.0.0:", f"//{host}:")


def _join_url(listener: socket) -> str:
    """URL for workers of other machines: if it listens on all addresses, one of them."""
    url = address_of(listener)
    for anywhere, family, elsewhere in (("0.0.0.0", AF_INET, "192.0.2.1"), ("[::]", AF_INET6, "2001:db8::1")):
        if f"//{anywhere}:" not in url:
            continue
        with socket(family, SOCK_DGRAM) as probe, suppress(OSError):  # sends nothing: finds the route to other machines
            probe.connect((elsewhere, 9))
            host = str(probe.getsockname()[0])
            return url.replace(anywhere, f"[{host}]" if ":" in host else host)
        return url.replace(anywhere, gethostname())
    return url
