"""What supervisors leave behind when they are killed before they can clean up, and its removal.

Everything they make outside the jail carries their process id in its name. Scratch directories are locked as well:
where containers share /tmp, another's processes cannot be seen from here.
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
"""How long what a supervisor has started may outlive it."""


def make_scratch() -> str:
    """A new directory, which stays as long as this process or one it forks."""
    path = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")
    fcntl.flock(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), fcntl.LOCK_EX)
    return path


def remove(directory: str) -> None:
    """Remove a scratch directory, whatever a program has made of it. Another user's stays."""
    with suppress(OSError):
        wipe(directory)
        os.rmdir(directory)


def sweep(pid: int | None = None) -> None:
    """Remove what the supervisor `pid` has left; or what all supervisors have left that no longer run."""
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
    """Whether somebody holds it, and goes on holding it."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # shut by a program, or another user's: there is none who could be disturbed, or nothing to be done
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
