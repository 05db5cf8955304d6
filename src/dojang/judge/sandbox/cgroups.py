"""A control group per worker: a second limit on memory and processes, where this machine allows it.

Supports cgroup v1 and v2. Programs have their own limits, so a missing cgroup is not an error: most containers allow
none.
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
"""Name prefix of everything a supervisor creates outside the jail; its process id follows."""


class Group:
    """Control group of one worker: a directory in each hierarchy."""

    def __init__(self, directories: list[Path], limit: int | None) -> None:
        self._directories = directories
        self.limit = limit
        """Descriptor of the memory limit file; the jail has no path to it."""

    def add(self, pid: int) -> None:
        for directory in self._directories:
            (directory / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        for directory in self._directories:
            remove(directory)


def available() -> str:
    """Name the usable controllers; empty if there are none."""
    return " and ".join(name for name, _ in _parents())


def create() -> Group | None:
    """Create a group; None if that is not possible."""
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
    """Remove a group whose processes have ended; the kernel needs a moment to notice."""
    for _ in range(_PATIENCE):
        try:
            return directory.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.02)


def groups() -> list[Path]:
    """List the groups of all supervisors, next to where new ones would be created."""
    found = [path for _, parent in _parents() for path in parent.glob(f"{PREFIX}*")]
    return [path for path in found if path.name.removeprefix(PREFIX).isdecimal()]


def _parents() -> list[tuple[str, Path]]:
    """(controller, directory in which a group can be created)."""
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
