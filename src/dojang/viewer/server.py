"""The viewer's server: the page, its API, and the life of both.

    with Viewer(["runs"]) as viewer:
        print(viewer.url)

serves in a thread until the end of the block; `dojang view` does the same until Ctrl-C.
"""

import os
import shutil
import socket
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from dojang.core.http_service import LOOPBACK, HttpServer, address_of, open_listener
from dojang.viewer.api import ERROR_HANDLERS, make_routes
from dojang.viewer.run_list import RunList
from dojang.viewer.security import Guard, choose_token

__all__ = ["Viewer"]

_PREFIX = "dojang-view-"
STATIC = Path(__file__).parent / "static"


class Viewer:
    """Serves a page over run directories."""

    def __init__(
        self, runs: Sequence[Path | str], *, host: str = "127.0.0.1", port: int = 0, token: str | None = None
    ) -> None:
        """`runs` are run directories, directories that hold runs, or s3:// addresses of either. Port 0 is any free
        one. Raises RunDirError if there is no run, ConfigError if the address cannot be used."""
        self.token = choose_token(host, token)
        self._listener: socket.socket = open_listener(host, port)
        _remove_abandoned()
        self._directory = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
        try:
            self.runs = RunList(runs, self._directory)
        except BaseException:
            self._listener.close()
            shutil.rmtree(self._directory, ignore_errors=True)
            raise
        app = Starlette(
            routes=[
                Route("/", _index),
                Mount("/static", _Static(directory=STATIC, check_dir=False)),
                *make_routes(self.runs),
            ],
            middleware=[
                Middleware(Guard, token=self.token, loopback=host in LOOPBACK),
                Middleware(GZipMiddleware, minimum_size=20_000, compresslevel=1),
            ],
            exception_handlers=ERROR_HANDLERS,
        )
        self._server = HttpServer(app)
        self._thread = Thread(target=self._server.run, args=([self._listener],), name="viewer", daemon=True)

    @property
    def url(self) -> str:
        """Address of the page, with the token if one is needed."""
        address = address_of(self._listener)
        for every in ("//0.0.0.0:", "//[::]:"):  # all addresses of this machine
            address = address.replace(every, f"//{socket.gethostname()}:")
        return address + (f"/?token={self.token}" if self.token else "/")

    def __enter__(self) -> "Viewer":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the server and all threads, and removes the temporary files."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join()
        self._listener.close()
        self.runs.close()
        shutil.rmtree(self._directory, ignore_errors=True)


def _remove_abandoned() -> None:
    """Removes the temporary files of viewers of this user that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        number = path.name.removeprefix(_PREFIX).partition("-")[0]
        with suppress(OSError):
            is_mine = path.is_dir() and not path.is_symlink() and path.stat().st_uid == os.getuid()
            if is_mine and number.isdecimal() and not _is_alive(int(number)):
                shutil.rmtree(path)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's
        return True
    return True


class _Static(StaticFiles):
    """Files of the page. A browser asks whether they have changed, so no newer file is mixed with an older one."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        found = super().file_response(*args, **kwargs)
        found.headers["Cache-Control"] = "no-cache"
        return found


def _index(request: Request) -> Response:
    return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})
