"""`dojang view`: serves the page until Ctrl-C."""

import os
import signal
import sys
import webbrowser
from collections.abc import Sequence
from threading import Event, Thread
from types import FrameType

import typer

from dojang.core.http_service import LOOPBACK
from dojang.viewer.server import Viewer

__all__ = ["view"]


def view(runs: Sequence[str], *, host: str, port: int, token: str | None, browser: bool) -> None:
    """Serves until Ctrl-C or SIGTERM. Prints the address, and opens it in a browser if there is a display."""
    ended = Event()

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    before = {each: signal.signal(each, end) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        with Viewer(runs, host=host, port=port, token=token) as viewer:
            typer.echo(f"viewer: {viewer.url}   (Ctrl-C ends it)")
            if host not in LOOPBACK:
                typer.echo("the connection is not encrypted: an ssh tunnel is safer (docs/view.md)", err=True)
            if browser and _has_display():
                Thread(target=webbrowser.open, args=(viewer.url,), daemon=True).start()
            ended.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _has_display() -> bool:
    """Reports whether a browser would have a window, and the person at it is at this machine."""
    if os.environ.get("SSH_CONNECTION"):
        return False
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
