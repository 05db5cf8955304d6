"""Reads GGUF, llama.cpp's file of metadata and quantized tensors.

The file is mapped, not loaded: a tensor is decoded to float32 when it is asked for, by llama.cpp's own `gguf` package,
which knows every quantization. The header is read here: that package reads past the end of a truncated file, and takes
a damaged count for a real one and loops on. Covers GGUF 2 and 3, little endian.
"""

import math
import mmap
import struct
from collections.abc import Mapping
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
class TensorInfo:
    """Position and storage of a tensor. `shape` is in numpy's order, the reverse of the file's."""

    shape: tuple[int, ...]
    storage: int
    offset: int
    """Bytes from the start of the file."""


class _Cursor:
    """Reads forward through the header; reading past the end means a truncated file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.data):
            raise ModelError(
                f"{self.path} is truncated: its header ends after byte {len(self.data)}; download it again"
            )
        taken, self.at = self.data[self.at : end], end
        return taken

    def numbers(self, code: str, count: int) -> tuple[Any, ...]:
        # Take the bytes before compiling the format: an absurd count is then reported as a truncated file.
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
        """Returns the metadata `key`. Raises ModelError if it is missing or not a `kind`."""
        if key not in self.metadata:
            raise ModelError(f"{self.path} has no metadata {key!r}, which this model needs")
        found = self.metadata[key]
        if not isinstance(found, kind):
            raise ModelError(f"{self.path}: metadata {key!r} is {found!r:.80}, not of type {kind.__name__}")
        return found

    def tensor(self, name: str) -> Floats:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
        from gguf.quants import dequantize

        info = self.tensors[name]
        if info.storage not in set(GGMLQuantizationType):
            raise ModelError(
                f"{self.path}: tensor {name!r} has the unknown storage type {info.storage}; upgrade the package gguf, "
                "or use a file with another quantization, such as Q8_0 or Q4_K_M"
            )
        storage = GGMLQuantizationType(info.storage)
        block, size = GGML_QUANT_SIZES[storage]
        if info.shape and info.shape[-1] % block:
            raise ModelError(
                f"{self.path}: tensor {name!r} has rows of {info.shape[-1]}, "
                f"not a multiple of the {block} numbers in a block of {storage.name}: the file is damaged"
            )
        count = math.prod(info.shape) // block * size
        if info.offset + count > len(self._data):
            raise ModelError(f"{self.path} is truncated: tensor {name!r} ends past the file; download it again")
        rows = np.frombuffer(self._data, np.uint8, count, info.offset).reshape(*info.shape[:-1], -1)
        decoded = dequantize(rows, storage).astype(np.float32, copy=True)
        return decoded.reshape(info.shape)


def read(path: Path) -> Gguf:
    """Maps the file and reads its header; the mapping lives as long as the result."""
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
