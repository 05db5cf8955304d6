"""A control group for a worker, where this machine lets us make one: a second bound on memory and processes.

Version 1 and 2 are understood. It is a backstop behind the limits every program has, and its absence is no
failure: inside most containers there is none to be had.
"""

import os
import time
from contextlib import suppress
from pathlib import Path

__all__ = ["PREFIX", "Group", "available", "create", "groups", "remove"]

_ROOT = Path("/sys/fs/cgroup")
_PIDS = 1024
_PATIENCE = 100
PREFIX = "dojang-judge-"
"""What everything a supervisor makes outside the jail is called, followed by its process id."""


class Group:
    """One worker's group: a directory for each hierarchy it is in."""

    def __init__(self, directories: list[Path], limit: int | None) -> None:
        self._directories = directories
        self.limit = limit
        """Descriptor of the file that holds the memory limit; a worker in its jail has no path to it."""

    def add(self, pid: int) -> None:
        for directory in self._directories:
            (directory / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        for directory in self._directories:
            remove(directory)


def available() -> str:
    """Which controllers can be used here, in words; empty if none can."""
    return " and ".join(name for name, _ in _parents())


def create() -> Group | None:
    """A new group; None where none can be made."""
    directories, limit = [], None
    for name, parent in _parents():
        directory = parent / f"{PREFIX}{os.getpid()}"
        with suppress(OSError):
            directory.mkdir(exist_ok=True)
            directories.append(directory)
            if name == "pids":
                (directory / "pids.max").write_text(str(_PIDS))
            else:
                files = [directory / each for each in ("memory.max", "memory.limit_in_bytes")]
                limit = os.open(next(filter(Path.exists, files)), os.O_WRONLY | os.O_CLOEXEC)
    return Group(directories, limit) if directories else None


def remove(directory: Path) -> None:
    """Remove a group whose processes are gone; the kernel takes a moment to notice."""
    for _ in range(_PATIENCE):
        try:
            return directory.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.02)


def groups() -> list[Path]:
    """All that were made where new ones would be, by this process or another."""
    found = [path for _, parent in _parents() for path in parent.glob(f"{PREFIX}*")]
    return [path for path in found if path.name.removeprefix(PREFIX).isdecimal()]


def _parents() -> list[tuple[str, Path]]:
    """(controller, directory in which a group for it may be made)."""
    found = []
    for line in _own_groups():
        _, names, path = line.split(":", 2)
        for name in ("memory", "pids"):
            if names == "":
                parent = (_ROOT / "unified" if (_ROOT / "unified").is_dir() else _ROOT) / path.lstrip("/")
                usable = name in _words(parent / "cgroup.subtree_control")
            else:
                parent, usable = _ROOT / name / path.lstrip("/"), name in names.split(",")
            if usable and os.access(parent, os.W_OK):
                found.append((name, parent))
    return list(dict(found).items())


def _own_groups() -> list[str]:
    with suppress(OSError):
        return Path("/proc/self/cgroup").read_text().splitlines()
    return []


def _words(path: Path) -> list[str]:
    with suppress(OSError):
        return path.read_text().split()
    return []
