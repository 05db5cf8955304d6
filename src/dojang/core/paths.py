"""Paths of the cache and of command outputs."""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dojang.core.errors import ConfigError

__all__ = ["absolute", "cache_root", "check_vacant", "claim", "writable"]


def cache_root() -> Path:
    """Cache directory: $DOJANG_CACHE, else $XDG_CACHE_HOME/dojang, else ~/.cache/dojang."""
    if own := os.environ.get("DOJANG_CACHE"):
        return absolute(own)
    return absolute(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "dojang"


def absolute(name: str) -> Path:
    """Absolute path of `name`: worker processes may start in another directory."""
    return Path(os.path.abspath(os.path.expanduser(name)))


def check_vacant(option: str, folder: Path) -> None:
    """Raises ConfigError unless the folder is new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{option} {folder} is not empty; choose another")


@contextmanager
def writable(option: str, path: Path) -> Iterator[None]:
    """Turns an OSError of writing to the path into a ConfigError that names the option."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{option} {path} cannot be written: {error.strerror or error}; choose another") from error


def claim(folder: Path, stem: str) -> Path:
    """Makes a new directory STEM-N in a folder, atomically: two commands never get the same one."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        path = folder / f"{stem}-{number}"
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise AssertionError("unreachable")
