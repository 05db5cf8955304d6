"""RolloutWorkers of a run that are other processes: on this machine, and on any machine that joins."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from socket import AF_INET, AF_INET6, SOCK_DGRAM, gethostname, socket

from dojang.core.http_service import HttpServer, address_of, open_listener
from dojang.loop.rollout_queue import RolloutQueue
from dojang.rollout_service.client import TOKEN_VARIABLE
from dojang.rollout_service.server import RolloutService, ServedRun
from dojang.rollout_service.worker import worker_name
from dojang.rollout_service.worker_process import WorkerProcess
from dojang.types import Metrics

__all__ = ["LocalProcesses", "ServedWorkers"]

_LEAVE_S = 5.0
"""Seconds for workers to leave at the end of a run."""


@dataclass(frozen=True, slots=True)
class LocalProcesses:
    """Worker processes to start on this machine."""

    command: Callable[[str], Sequence[str]]
    """Returns the command of a worker that joins a URL."""
    environments: Sequence[Mapping[str, str]] = ()
    """Environment variables of each worker: one process per entry."""
    log: Callable[[int], Path] = field(default=lambda number: Path(f"worker-{number}.log"))
    """Returns the log file of a worker."""


class ServedWorkers:
    """Serves prompts and weights at one port, and starts worker processes on this machine."""

    def __init__(
        self,
        run: ServedRun,
        host: str,
        port: int,
        processes: LocalProcesses,
        announce: Callable[[str], None] = lambda url: None,
    ) -> None:
        """`announce` is called with the URL once workers can join. Port 0 takes any free one."""
        self._run, self._processes, self._announce = run, processes, announce
        self._host, self._port = host, port
        self._service: RolloutService | None = None
        self._server: HttpServer | None = None
        self._serving: asyncio.Task[None] | None = None
        self._workers: list[WorkerProcess] = []
        self._sent = 0

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers on this machine."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    async def start(self, queue: RolloutQueue) -> None:
        self._open().begin(queue)

    async def publish(self, version: int) -> Metrics:
        """Checks that all policies have published the version. Workers fetch it when the queue has published it, and
        sample no prompt that needs it before. The first call starts the worker processes: they build their parts while
        the trainer evaluates."""
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
        """Ends the worker processes of this machine; others learn that the run has ended. Close the queue before."""
        deadline = time.monotonic() + _LEAVE_S
        if self._service is not None:
            await self._service.all_left(_LEAVE_S)
        await asyncio.gather(*(worker.close(max(0.1, deadline - time.monotonic())) for worker in self._workers))
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving

    def _open(self) -> RolloutService:
        """Listens, and starts the worker processes, unless that is done."""
        if self._service is not None:
            return self._service
        listener = open_listener(self._host, self._port)
        self._service = RolloutService(self._run)
        self._server = HttpServer(self._service.app())
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        self._announce(_join_url(listener))
        url = address_of(listener).replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
        command = self._processes.command(url)
        for number, environment in enumerate(self._processes.environments):
            variables = {**environment, TOKEN_VARIABLE: self._run.token}
            worker = WorkerProcess(command, variables, self._processes.log(number), self._on_end)
            self._workers.append(worker)
            worker.start()
        return self._service

    def _on_end(self, pid: int, reason: str) -> bool:
        """Returns the prompts of a worker process that ended; reports whether it is started again."""
        assert self._service is not None
        self._service.lost(worker_name(pid))
        if self._service.ended:
            return False
        self._service.failed(worker_name(pid), reason, killed=True)
        return True


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
