"""Ray's processes, as the kernel sees them."""

import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["kill", "of"]


def of(nodes: Iterable[Any], *names: str) -> dict[int, str]:
    """Those that nodes of a cluster have begun for actors of these names, by their numbers."""
    raylets = {info.process.pid for node in nodes for info in node.all_processes.get("raylet", [])}
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            title = (folder / "cmdline").read_bytes().decode(errors="replace").rstrip("\0 ")
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue  # it has ended
        if parent in raylets and title.startswith(tuple(f"ray::{name}" for name in names)):
            found[int(folder.name)] = title
    return found


def kill(number: int) -> None:
    os.kill(number, signal.SIGKILL)
