"""Converted models in the cache: each is made once, and is complete or absent.

    <cache>/models/<name>-<key>   a Hugging Face directory

The key changes with the GGUF file and with this conversion.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from dojang.core.errors import ModelError
from dojang.core.progress import ProgressBars
from dojang.core.run_dir import sync_tree

__all__ = ["Make", "Say", "convert_with_progress", "converted_path", "is_complete", "make_once", "to_stderr"]

CONVERTER = 2
"""Version of the conversion; increase it to invalidate earlier results."""
FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
"""Files that every version of transformers writes, besides the weights; a directory without one is not used."""
_STALE_S = 24 * 3600
_PARTIAL = ".partial-"

Say = Callable[[str], None]
"""Reports a line to the user."""
Make = Callable[[Path, Path], None]
"""Makes the model in a new directory; the first argument is a directory for temporary files on the same disk."""


def to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def converted_path(cache: Path, name: str, source: str) -> Path:
    """Returns the path of a converted model; `source` identifies its GGUF file."""
    key = hashlib.sha256(f"{source} {CONVERTER}".encode()).hexdigest()[:8]
    return cache / "models" / f"{name}-{key}"


def is_complete(directory: Path) -> bool:
    """Whether a converted model has all its files: a cache cleaner may have removed some."""
    if not all((directory / name).is_file() for name in FILES):
        return False
    index = directory / "model.safetensors.index.json"
    if not index.is_file():
        return (directory / "model.safetensors").is_file()
    with contextlib.suppress(OSError, ValueError, KeyError, AttributeError):
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        return all((directory / name).is_file() for name in shards)
    return False


def make_once(target: Path, title: str, disk_bytes: int, make: Make, say: Say) -> Path:
    """Returns `target`; makes it if it is not complete. Safe to call from many processes at once."""
    if is_complete(target):
        return target
    cache = target.parent.parent
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _file_lock(target.parent, title, say):
            if not is_complete(target):
                _check_disk(target.parent, title, disk_bytes)
                _make(target, make)
                say(f"{title} is ready in {target}")
    except OSError as error:
        raise ModelError(
            f"cannot store {title} in {cache}: {error}; make it writable, or set DOJANG_CACHE to another directory"
        ) from error
    return target


def convert_with_progress(gguf: Path, directory: Path, title: str, *, tied: bool | None, say: Say) -> None:
    """Converts a GGUF file; a terminal shows a progress bar."""
    from dojang.models.convert import convert  # loads torch and transformers

    say(f"converting {title}")
    with ProgressBars(Console(stderr=True), shown=sys.stderr.isatty()) as bars:
        convert(gguf, directory, tied=tied, progress=lambda done, total: bars.update("converting", done, total))


@contextlib.contextmanager
def _file_lock(directory: Path, title: str, say: Say) -> Iterator[None]:
    """Locks a file, so that the ranks of a host do not all download the same file.

    Some network file systems have no locks. Then all processes work, and the first to rename wins.
    """
    with (directory / ".lock").open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process to prepare {title}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            pass
        yield


def _check_disk(directory: Path, title: str, needed: int) -> None:
    if (free := shutil.disk_usage(directory).free) < needed:
        raise ModelError(
            f"not enough disk space for {title}: {directory} has {free / 1e9:.3g} GB free, and {needed / 1e9:.3g} GB "
            "are needed; free some, or point DOJANG_CACHE at another disk"
        )


def _make(target: Path, make: Make) -> None:
    """Builds the model next to `target` and renames it, so that no process sees an incomplete one."""
    _sweep(target.parent)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=_PARTIAL) as name:
        scratch = Path(name)
        fresh = scratch / target.name
        fresh.mkdir()  # not the temporary directory itself, which other users could not read
        make(scratch, fresh)
        sync_tree(fresh)
        if target.exists() and not is_complete(target):
            os.rename(target, scratch / "damaged")
        try:
            os.rename(fresh, target)
        except OSError:
            if not is_complete(target):
                raise


def _sweep(directory: Path) -> None:
    """Removes directories that killed processes left behind, by their age."""
    for path in directory.glob(f"{_PARTIAL}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE_S:
                shutil.rmtree(path)
