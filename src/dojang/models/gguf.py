"""Reads GGUF, llama.cpp's file of metadata and (quantised) tensors.

The file is mapped, not loaded: a tensor is decoded to float32 when it is asked for. Covers GGUF 2 and 3,
little endian, and the storage types F32, F16, Q8_0, Q4_0 and Q4_1. The K- and IQ-quantisations, writing, and
running anything on packed weights are out of scope.
"""

import math
import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dojang.core.errors import ModelError

__all__ = ["Floats", "Gguf", "TensorInfo", "read"]

Floats = NDArray[np.float32]
T = TypeVar("T")

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class _Storage:
    """How tensors of one type lie in the file: blocks of `block` numbers, each one `layout` record."""

    block: int
    layout: np.dtype[Any]
    decode: Callable[[NDArray[Any]], Floats]


def _column(blocks: NDArray[Any], field: str) -> Floats:
    return blocks[field].astype(np.float32)[:, None]


def _nibbles(blocks: NDArray[Any]) -> Floats:
    """A block's 32 four-bit numbers: the low halves of its 16 bytes, then the high halves."""
    packed = blocks["q"]
    return np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)


def _q4_0(blocks: NDArray[Any]) -> Floats:
    return _column(blocks, "scale") * (_nibbles(blocks) - np.float32(8))


def _q4_1(blocks: NDArray[Any]) -> Floats:
    return _column(blocks, "scale") * _nibbles(blocks) + _column(blocks, "least")


def _q8_0(blocks: NDArray[Any]) -> Floats:
    return _column(blocks, "scale") * blocks["q"].astype(np.float32)


def _plain(values: NDArray[Any]) -> Floats:
    return values.astype(np.float32)


_STORAGE = {
    0: _Storage(1, np.dtype("<f4"), _plain),
    1: _Storage(1, np.dtype("<f2"), _plain),
    2: _Storage(32, np.dtype([("scale", "<f2"), ("q", "u1", 16)]), _q4_0),
    3: _Storage(32, np.dtype([("scale", "<f2"), ("least", "<f2"), ("q", "u1", 16)]), _q4_1),
    8: _Storage(32, np.dtype([("scale", "<f2"), ("q", "i1", 32)]), _q8_0),
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor is and how it is stored. `shape` is in numpy's order, the reverse of the file's."""

    shape: tuple[int, ...]
    storage: int
    offset: int
    """Bytes from the start of the file."""


class _Cursor:
    """Reads forward through the header; running off the end is a truncated file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.data):
            raise ModelError(
                f"{self.path} is truncated: its header goes on after byte {len(self.data)}; fetch it again"
            )
        taken, self.at = self.data[self.at : end], end
        return taken

    def numbers(self, code: str, count: int) -> tuple[Any, ...]:
        # The bytes are taken before the format is compiled: an absurd count then is a truncated file.
        taken = self.take(struct.calcsize(f"<{code}") * count)
        return struct.unpack(f"<{count}{code}", taken)

    def number(self, code: str) -> Any:
        return self.numbers(code, 1)[0]

    def string(self) -> str:
        taken = self.take(self.number("Q"))
        try:
            return taken.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ModelError(f"{self.path} is damaged: its header holds text that is not UTF-8 ({error})") from error

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind != _ARRAY:
            raise ModelError(f"{self.path} is damaged: its header holds a value of unknown type {kind}")
        element, count = self.number("I"), self.number("Q")
        if element in _SCALARS:
            return list(self.numbers(_SCALARS[element], count))
        return [self.value(element) for _ in range(count)]


class Gguf:
    """An open GGUF file: its metadata, and its tensors on demand."""

    def __init__(
        self, path: Path, data: mmap.mmap, metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo]
    ) -> None:
        self.path = path
        self.metadata = metadata
        self.tensors = tensors
        self._data = data

    def value(self, key: str, kind: type[T]) -> T:
        """The metadata under `key`, which must be there and be a `kind`."""
        if key not in self.metadata:
            raise ModelError(f"{self.path} has no metadata {key!r}, which this model needs")
        found = self.metadata[key]
        if not isinstance(found, kind):
            raise ModelError(f"{self.path}: metadata {key!r} is {found!r:.80}, not of type {kind.__name__}")
        return found

    def tensor(self, name: str) -> Floats:
        """The tensor `name`, decoded."""
        info = self.tensors[name]
        storage = _STORAGE.get(info.storage)
        if storage is None:
            raise ModelError(
                f"{self.path}: tensor {name!r} has storage type {info.storage}, which is not supported: "
                "use a file quantised as F32, F16, Q8_0, Q4_0 or Q4_1"
            )
        if info.shape and info.shape[-1] % storage.block:
            raise ModelError(
                f"{self.path}: tensor {name!r} has rows of {info.shape[-1]}, "
                f"not a multiple of its storage's block of {storage.block}: the file is damaged"
            )
        count = math.prod(info.shape) // storage.block
        if info.offset + count * storage.layout.itemsize > len(self._data):
            raise ModelError(f"{self.path} is truncated: tensor {name!r} ends after the file does; fetch it again")
        blocks = np.frombuffer(self._data, storage.layout, count, info.offset)
        return storage.decode(blocks).reshape(info.shape)


def read(path: Path) -> Gguf:
    """Map the file and read its header; the mapping goes when the result does."""
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ModelError(f"{path} is not a GGUF file: it does not begin with 'GGUF'")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    cursor = _Cursor(path, data)
    cursor.take(4)
    if (version := cursor.number("I")) not in (2, 3):
        raise ModelError(f"{path} is GGUF version {version}; only versions 2 and 3 can be read")
    tensor_count, metadata_count = cursor.numbers("Q", 2)
    metadata = {cursor.string(): cursor.value(cursor.number("I")) for _ in range(metadata_count)}
    directory = [_tensor_entry(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise ModelError(f"{path} is damaged: its tensors are aligned to {alignment!r} bytes")
    start = -(-cursor.at // alignment) * alignment
    tensors = {name: TensorInfo(shape, kind, start + offset) for name, shape, kind, offset in directory}
    return Gguf(path, data, metadata, tensors)


def _tensor_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string()
    shape = cursor.numbers("Q", cursor.number("I"))[::-1]
    return name, shape, cursor.number("I"), cursor.number("Q")
