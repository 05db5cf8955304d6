"""What guardians leave behind when they are killed before they can clean up, and its removal.

Everything they make outside the jail carries their process id in its name.
"""

import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

from dojang.judge.sandbox import cgroups
from dojang.judge.sandbox.cgroups import PREFIX
from dojang.judge.sandbox.jail import wipe

__all__ = ["remove", "scratch_prefix", "sweep"]


def scratch_prefix() -> str:
    """How the scratch directory of this process begins."""
    return f"{PREFIX}{os.getpid()}-"


def remove(directory: str) -> None:
    """Remove a scratch directory, whatever a program has made of it. Another user's stays."""
    with suppress(OSError):
        wipe(directory)
        os.rmdir(directory)


def sweep(pid: int | None = None) -> None:
    """Remove what the guardian `pid` has left; or what all guardians have left that no longer run."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        owner = re.match(rf"{PREFIX}(\d+)-", path.name)
        if owner and _is_over(int(owner[1]), pid):
            remove(str(path))
    for path in cgroups.groups():
        if _is_over(int(path.name.removeprefix(PREFIX)), pid):
            cgroups.remove(path)


def _is_over(owner: int, pid: int | None) -> bool:
    return owner == pid if pid is not None else not Path(f"/proc/{owner}").exists()
