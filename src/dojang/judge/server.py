"""Runs the judge service until a signal, then drains it.

On SIGTERM or SIGINT: /health reports draining and new requests get status 503, so that load balancers and clients go
elsewhere. Admitted requests finish, for a limited time. Then the judge closes and the server ends. A second signal
ends the draining at once. The routes are in `service.py`.
"""

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dojang.core.errors import ConfigError
from dojang.core.http_service import LOOPBACK, HttpServer, address_of, open_listener
from dojang.judge.admission import AdmissionControl
from dojang.judge.service import ServiceOptions, make_app
from dojang.protocols import Judge

__all__ = ["serve"]

SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def serve(
    judge: Judge,
    options: ServiceOptions,
    *,
    host: str = "127.0.0.1",
    port: int = 8642,
    drain_s: float = 30.0,
    announce: Callable[[str], None] = lambda url: None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve until a signal comes or `stop` is set, then drain and close the judge.

    `announce` is called with the service's URL once it accepts requests. Port 0 takes any free port.
    """
    stop = stop or asyncio.Event()
    try:
        listener = _listener(options, host, port)
    except ConfigError:
        await judge.close()
        raise
    app = make_app(judge, options)
    server = HttpServer(app)
    with _signals(stop):
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            announce(address_of(listener))
            await _either(serving, stop)
            await _drained(app.state.admission, stop, drain_s)
        finally:
            await judge.close()  # pending requests end as JUDGE_ERROR and get a reply
            server.should_exit = True
            await serving


def _listener(options: ServiceOptions, host: str, port: int) -> socket.socket:
    if options.token is None and host not in LOOPBACK:
        raise ConfigError(
            f"host={host} is reachable from other machines, and without a token any machine could run programs "
            "here; set a token, or use host=127.0.0.1"
        )
    return open_listener(host, port)


@contextmanager
def _signals(stop: asyncio.Event) -> Iterator[None]:
    """Set `stop` on a signal, if this thread can catch signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    for each in SIGNALS:
        loop.add_signal_handler(each, stop.set)
    try:
        yield
    finally:
        for each in SIGNALS:
            loop.remove_signal_handler(each)


async def _drained(admission: AdmissionControl, stop: asyncio.Event, seconds: float) -> None:
    """Wait until admitted requests finish. A second signal, or setting `stop` again, ends the wait."""
    admission.draining = True
    stop.clear()
    emptied = asyncio.create_task(admission.empty())
    try:
        await _either(emptied, stop, seconds)
    finally:
        emptied.cancel()


async def _either(task: "asyncio.Task[None]", stop: asyncio.Event, seconds: float | None = None) -> None:
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((task, stopped), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
