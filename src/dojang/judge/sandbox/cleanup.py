"""Removes scratch directories and cgroups of supervisors that were killed before they could clean up.

Everything a supervisor creates outside the jail has its process id in the name. Scratch directories are locked too:
containers may share /tmp without seeing each other's processes.
"""

import fcntl
import os
import re
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from dojang.judge.sandbox import cgroups
from dojang.judge.sandbox.cgroups import PREFIX
from dojang.judge.sandbox.jail import wipe

__all__ = ["make_scratch", "remove", "sweep"]


_DYING_S = 2.0
"""Seconds that a supervisor's children may outlive it."""


def make_scratch() -> str:
    """Create a directory, locked as long as this process or a child of it lives."""
    path = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")
    fcntl.flock(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), fcntl.LOCK_EX)
    return path


def remove(directory: str) -> None:
    """Remove a scratch directory, whatever a program did in it. Another user's directory stays."""
    with suppress(OSError):
        wipe(directory)
        os.rmdir(directory)


def sweep(pid: int | None = None) -> None:
    """Remove what supervisor `pid` left behind; without `pid`, what all dead supervisors left."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        owner = re.match(rf"{PREFIX}(\d+)-", path.name)
        if owner and _is_over(int(owner[1]), pid) and not _is_locked(path, patience=_DYING_S if pid else 0.0):
            remove(str(path))
    for path in cgroups.groups():
        if _is_over(int(path.name.removeprefix(PREFIX)), pid):
            cgroups.remove(path)


def _is_over(owner: int, pid: int | None) -> bool:
    return owner == pid if pid is not None else not Path(f"/proc/{owner}").exists()


def _is_locked(path: Path, patience: float) -> bool:
    """Whether a process holds the lock, still after `patience` seconds."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # made unreadable by a program, or another user's: no process to disturb, or nothing to do
        return False
    deadline = time.monotonic() + patience
    try:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return False
            if time.monotonic() >= deadline:
                return True
            time.sleep(0.02)
    finally:
        os.close(file)
