"""Reads a GGUF file: metadata, tensors, dequantized rows.

The `gguf` library decodes the quantized blocks. Its reader makes a numpy array of every token and merge, which takes
half a minute for a vocabulary of 260,000; this one takes a second, and says what is wrong with a damaged file.
"""

import math
import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
from numpy.typing import NDArray

from dojang.core.errors import DojangError, ModelError

__all__ = ["GgufFile", "GgufTensor", "refuse_wrong_metadata"]

_NUMBERS: dict[int, np.dtype[Any]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
"""Types of metadata values by their number in the file."""
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)


class _Damaged(ValueError):
    """The file does not have the structure of a GGUF file."""


@contextmanager
def refuse_wrong_metadata(path: Path) -> Iterator[None]:
    """Raises ModelError where metadata of a wrong type or range make reading or converting fail.

    A damaged file may have any value in any key, so their checks are where they are used: here, in transformers and
    in tokenizers.
    """
    try:
        yield
    except (DojangError, _Damaged, OSError, MemoryError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(
            f"{path} has metadata that describe no model ({type(error).__name__}: {reason}); download it again, or "
            "convert the model to GGUF again"
        ) from error


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of the file."""

    name: str
    shape: tuple[int, ...]
    """Dimensions in the order of numpy and torch."""
    kind: GGMLQuantizationType
    offset: int
    """Position of its data in the file."""

    @property
    def row_bytes(self) -> int:
        block, size = GGML_QUANT_SIZES[self.kind]
        return self.shape[-1] // block * size

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def bits(self) -> float:
        """Bits per weight."""
        block, size = GGML_QUANT_SIZES[self.kind]
        return float(8 * size / block)


class GgufFile:
    """An open GGUF file. Raises ModelError if it is damaged, or holds what this package cannot decode."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise ModelError(f"{path} cannot be read ({error}); give a GGUF file") from error
        self._position = 0
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GgufTensor] = {}
        try:
            with refuse_wrong_metadata(path):
                self._read()
        except _Damaged as error:
            raise ModelError(f"{path} is no complete GGUF file: {error}; download it again") from error

    def rows(self, tensor: GgufTensor, start: int, stop: int) -> NDArray[np.float32]:
        """Dequantizes some rows of a tensor, in one numpy operation per step: threads run in parallel."""
        size = tensor.row_bytes
        first = tensor.offset + start * size
        packed = np.frombuffer(self._data, np.uint8, (stop - start) * size, first)
        values: NDArray[np.float32] = dequantize(packed[None], tensor.kind)
        return values.reshape(stop - start, tensor.shape[-1])

    def values(self, name: str) -> NDArray[np.float32]:
        """Dequantizes a small tensor."""
        tensor = self.tensors[name]
        return self.rows(tensor, 0, tensor.rows).reshape(tensor.shape)

    @cached_property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    def get(self, key: str, default: Any = None) -> Any:
        """Returns a metadata value of the architecture, such as `block_count`."""
        return self.metadata.get(f"{self.architecture}.{key}", default)

    def require(self, key: str) -> Any:
        """Returns a metadata value of the architecture. Raises ModelError if the file has none."""
        if (found := self.get(key)) is None:
            raise ModelError(f"{self.path} has no metadata {self.architecture}.{key}; convert the model to GGUF again")
        return found

    def _read(self) -> None:
        if self._data[:4] != b"GGUF":
            raise _Damaged("it does not begin with GGUF")
        self._position = 4
        version = self._number("<I")
        if version not in _VERSIONS:
            reason = "of a big-endian machine" if version >> 16 else f"of version {version}"
            raise ModelError(f"{self.path} is a GGUF file {reason}: convert the model again, to GGUF version 3")
        tensors, keys = self._number("<Q"), self._number("<Q")
        for _ in range(keys):
            key = self._string()
            self.metadata[key] = self._value(self._number("<I"))
        if (parts := int(self.metadata.get("split.count", 1))) > 1:
            raise ModelError(f"{self.path} is one of {parts} parts: join them with `llama-gguf-split --merge`")
        infos = [self._tensor_info() for _ in range(tensors)]
        alignment = int(self.metadata.get("general.alignment", 32)) or 32
        start = -(-self._position // alignment) * alignment
        for name, shape, number, offset in infos:
            self.tensors[name] = self._tensor(name, shape, number, start + offset)

    def _tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name, dimensions = self._string(), self._number("<I")
        if not 1 <= dimensions <= 8:
            raise _Damaged(f"tensor {name!r} has {dimensions} dimensions")
        shape = tuple(self._number("<Q") for _ in range(dimensions))
        return name, shape[::-1], self._number("<I"), self._number("<Q")

    def _tensor(self, name: str, shape: tuple[int, ...], number: int, offset: int) -> GgufTensor:
        try:
            tensor = GgufTensor(name, shape, GGMLQuantizationType(number), offset)
            # Whether the library can decode this kind, before an hour of converting: one block of zeros.
            block, size = GGML_QUANT_SIZES[tensor.kind]
            dequantize(np.zeros((1, size), np.uint8), tensor.kind)
        except (ValueError, KeyError, NotImplementedError) as error:
            raise ModelError(
                f"tensor {name} of {self.path} has a quantization that the installed gguf library cannot decode "
                f"({error}); give a file of another quantization, such as Q4_K_M or Q8_0, or upgrade gguf"
            ) from error
        if shape[-1] % block:
            raise _Damaged(f"tensor {name!r} has rows of {shape[-1]} weights, no multiple of {block}")
        end = offset + tensor.rows * tensor.row_bytes
        if end > len(self._data):
            raise _Damaged(f"tensor {name!r} ends at byte {end:,}, but the file has only {len(self._data):,}")
        return tensor

    def _take(self, count: int) -> bytes:
        start, self._position = self._position, self._position + count
        if self._position > len(self._data):
            raise _Damaged(f"it ends within its header, at {len(self._data):,} bytes")
        return self._data[start : self._position]

    def _number(self, code: str) -> int:
        return int(struct.unpack(code, self._take(struct.calcsize(code)))[0])

    def _string(self) -> str:
        try:
            return self._take(self._number("<Q")).decode()
        except UnicodeDecodeError as error:
            raise _Damaged(f"its header has text that is not UTF-8 ({error})") from error

    def _value(self, number: int) -> Any:
        if number == _STRING:
            return self._string()
        if number == _ARRAY:
            kind, count = self._number("<I"), self._number("<Q")
            if dtype := _NUMBERS.get(kind):
                return np.frombuffer(self._take(count * dtype.itemsize), dtype).tolist()
            return [self._value(kind) for _ in range(count)]
        if (dtype := _NUMBERS.get(number)) is None:
            raise _Damaged(f"its header has a value of the unknown type {number}")
        return np.frombuffer(self._take(dtype.itemsize), dtype)[0].item()
