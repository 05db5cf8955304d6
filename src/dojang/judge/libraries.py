"""Finds the shared libraries that programs need, with `ldd`.

`ldd` starts several processes per program, and an interpreter has dozens of extension modules. Most of them need the
same libraries, so `ldd` runs once for each distinct set.
"""

import mmap
import os
import struct
import subprocess
from collections.abc import Iterator, Sequence
from functools import lru_cache

from dojang.core.errors import ConfigError

__all__ = ["shared_libraries"]

_MAGIC = b"\x7fELF\x02\x01"
"""Magic bytes of 64-bit little-endian ELF files."""
_LOADED, _DYNAMIC = 1, 2
"""Segment types."""
_NEEDED, _STRINGS, _SEARCHED = 1, 5, (15, 29)
"""Dynamic entry types: needed library, string table, library search paths."""


def shared_libraries(programs: Sequence[str]) -> list[str]:
    """Folders of the shared libraries these programs need, and the loader."""
    return list(_run_ldd(tuple((path, _identity(path)) for path in programs)))


def _identity(path: str) -> tuple[int, ...]:
    try:
        state = os.stat(path)
    except OSError:
        return ()
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


@lru_cache(16)
def _run_ldd(known: tuple[tuple[str, tuple[int, ...]], ...]) -> tuple[str, ...]:
    """Run ldd, once per unchanged file."""
    alike = {_library_key(path): path for path, _ in known}
    try:
        result = subprocess.run(["ldd", *alike.values()], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"ldd, which lists a program's shared libraries, does not run: {error}") from error
    paths = [word for line in result.stdout.splitlines() if ":" not in line for word in line.split() if word[0] == "/"]
    loaders = [path for path in paths if os.path.basename(path).startswith("ld-")]
    return tuple(sorted({os.path.dirname(path) for path in paths if path not in loaders} | set(loaders)))


def _library_key(path: str) -> tuple[object, ...]:
    """Key of a program's library set; its path if the file cannot be parsed."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[: len(_MAGIC)] != _MAGIC:
                return (path,)
            entries = list(_dynamic_entries(data))
            start = _place(data, next(value for kind, value in entries if kind == _STRINGS))
            needed = {_text(data, start + value) for kind, value in entries if kind == _NEEDED}
            searched = [(kind, _text(data, start + value)) for kind, value in entries if kind in _SEARCHED]
    except (OSError, ValueError, struct.error, StopIteration):
        return (path,)
    here = os.path.dirname(path) if any(b"$" in each for _, each in searched) else ""  # $ORIGIN
    return frozenset(needed), tuple(searched), here


def _segments(data: mmap.mmap) -> Iterator[tuple[int, int, int, int]]:
    """Type, offset in the file, address and size in the file."""
    (start,) = struct.unpack_from("<Q", data, 0x20)
    size, count = struct.unpack_from("<HH", data, 0x36)
    for number in range(count):
        kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", data, start + number * size)
        yield kind, offset, address, length


def _dynamic_entries(data: mmap.mmap) -> Iterator[tuple[int, int]]:
    for kind, offset, _, length in _segments(data):
        if kind == _DYNAMIC:
            yield from struct.iter_unpack("<qQ", data[offset : offset + length // 16 * 16])


def _place(data: mmap.mmap, address: int) -> int:
    """File offset of an address."""
    for kind, offset, begin, length in _segments(data):
        if kind == _LOADED and begin <= address < begin + length:
            return offset + address - begin
    raise ValueError("the address is not in the file")


def _text(data: mmap.mmap, place: int) -> bytes:
    return data[place : data.find(b"\0", place)]
