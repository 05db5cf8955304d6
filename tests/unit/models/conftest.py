"""A GGUF writer for the tests: just enough of the format to make small files by hand."""

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest


class Stored(NamedTuple):
    """A tensor as it lies in the file; `shape` in numpy's order."""

    shape: tuple[int, ...]
    storage: int
    data: bytes


Write = Callable[[Path, Mapping[str, object], Mapping[str, Stored]], Path]


@pytest.fixture(scope="session")
def write_gguf() -> Write:
    return _write


@pytest.fixture(scope="session")
def stored() -> type[Stored]:
    return Stored


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def _value(value: object) -> bytes:
    """The value behind its type number."""
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _text(value)
        case list():
            typed = [_value(item) for item in value]
            return struct.pack("<I", 9) + typed[0][:4] + struct.pack("<Q", len(typed)) + b"".join(t[4:] for t in typed)
    raise TypeError(value)


def _padded(data: bytes, alignment: int) -> bytes:
    return data + bytes(-len(data) % alignment)


def _write(path: Path, metadata: Mapping[str, object], tensors: Mapping[str, Stored]) -> Path:
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    header += b"".join(_text(key) + _value(value) for key, value in metadata.items())
    alignment = max(1, int(str(metadata.get("general.alignment", 32))))
    body = b""
    for name, (shape, storage, data) in tensors.items():
        header += _text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        header += struct.pack("<IQ", storage, len(body))
        body += _padded(data, alignment)
    path.write_bytes(_padded(header, alignment) + body)
    return path
