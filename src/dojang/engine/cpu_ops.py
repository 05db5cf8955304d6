"""What a processor does between the products of a decoding step, in C++ (cpu_ops.cpp): torch's attention is made for
queries of many tokens, and for the rest it takes more calls than such a step has work.

It is compiled where it first runs, for that processor, and kept in the cache; without a compiler torch's is used. It
shares torch's threads: the OpenMP it is bound to is the one torch has loaded, since the threads of two would be in each
other's way.
"""

import ctypes
import hashlib
import math
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from dojang.core.paths import cache_root

__all__ = ["Between", "Look", "between_for", "look_for"]

_SOURCE = Path(__file__).with_name("cpu_ops.cpp")
_FLAGS = (
    *("-std=c++17", "-O3", "-march=native", "-fPIC", "-fopenmp"),
    # Sums in any order, as vectors want it; not -ffast-math, which changes the arithmetic of the whole process.
    *("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math", "-ffp-contract=fast"),
)
_X86_FLAGS = ("-mprefer-vector-width=512",)
_SECONDS = 60
_OPENMP = re.compile(r"/lib(gomp|iomp5|omp)[-.][^/]*$")


class _Slots(ctypes.Structure):
    """As in cpu_ops.cpp."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "heads", "group", "size", "slot", "head")),
        *((name, ctypes.c_int64) for name in ("q_row", "k_row", "v_row")),
        ("scale", ctypes.c_float),
    )


class _Heads(ctypes.Structure):
    """As in cpu_ops.cpp."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "queries", "keys", "size", "row")),
        ("epsilon", ctypes.c_float),
    )


class Between:
    """The compiled functions for all but attention. What they are given has no gaps between its numbers."""

    def __init__(self, library: Path) -> None:
        # They take microseconds. To let another thread have the interpreter meanwhile would take longer.
        functions = ctypes.PyDLL(str(library))
        self._norm, self._turn, self._gate = functions.dojang_norm, functions.dojang_turn, functions.dojang_gate
        size, address = ctypes.c_int64, ctypes.c_void_p
        self._norm.argtypes = [size, size, ctypes.c_float, ctypes.c_int, *[address] * 4]
        self._turn.argtypes = [ctypes.POINTER(_Heads), ctypes.c_int, *[address] * 6]
        self._gate.argtypes = [size, size, ctypes.c_int, *[address] * 2]
        for each in (self._norm, self._turn, self._gate):
            each.restype = None

    def norm(self, x_NE: Tensor, y_NE: Tensor | None, weight_E: Tensor, epsilon: float) -> Tensor:
        """x, to which y is added in place, normalised."""
        assert x_NE.is_contiguous()
        assert y_NE is None or (y_NE.is_contiguous() and y_NE.shape == x_NE.shape)
        result_NE = torch.empty_like(x_NE)
        given = (_address(each) for each in (x_NE, y_NE, weight_E, result_NE))
        self._norm(*x_NE.shape, epsilon, _is_half(x_NE), *given)
        return result_NE

    def turn(
        self,
        qkv_NGD: Tensor,
        heads: tuple[int, int],
        rotation: tuple[Tensor, Tensor, Tensor],
        norms: tuple[Tensor | None, Tensor | None],
        epsilon: float,
    ) -> None:
        """Queries and keys, so many heads of each, normalised if there are weights for it, and turned, in place.
        `rotation` is cosines and sines by position, [T, D], and the positions."""
        assert all(each.is_contiguous() for each in (qkv_NGD, *rotation))
        assert rotation[2].dtype is torch.int64
        rows, _, size = qkv_NGD.shape
        at = _Heads(rows, *heads, size, qkv_NGD.stride(0), epsilon)
        self._turn(at, _is_half(qkv_NGD), *(_address(each) for each in (qkv_NGD, *rotation, *norms)))

    def gate(self, gate_up_NF: Tensor) -> Tensor:
        """The second half of each row, let through by the first."""
        assert gate_up_NF.is_contiguous()
        rows, size = gate_up_NF.shape
        result_NF = gate_up_NF.new_empty(rows, size // 2)
        self._gate(rows, size // 2, _is_half(gate_up_NF), gate_up_NF.data_ptr(), result_NF.data_ptr())
        return result_NF


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _is_half(tensor: Tensor) -> bool:
    return tensor.dtype is torch.bfloat16


class Look:
    """The compiled function for attention."""

    def __init__(self, library: Path) -> None:
        self._function = ctypes.CDLL(str(library)).dojang_look
        self._function.argtypes = [ctypes.POINTER(_Slots), ctypes.c_int, *[ctypes.c_void_p] * 7]
        self._function.restype = None

    def __call__(
        self, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor, keys_SKTD: Tensor, values_SKTD: Tensor, length_N: Tensor
    ) -> Tensor:
        """What the newest token of each of the first N slots sees, [N, H, D]. Keys and values get the given ones at the
        last of as many places as each length says."""
        rows, heads, size = k_NKD.shape
        assert all(each.stride()[1:] == (size, 1) for each in (q_NHD, k_NKD, v_NKD))
        assert keys_SKTD.stride() == values_SKTD.stride()
        assert keys_SKTD.stride()[2:] == (size, 1)
        at = _Slots(
            *(rows, heads, q_NHD.shape[1] // heads, size, *keys_SKTD.stride()[:2]),
            *(each.stride(0) for each in (q_NHD, k_NKD, v_NKD)),
            math.log2(math.e) / math.sqrt(size),
        )
        seen_NHD = q_NHD.new_empty(q_NHD.shape)
        tensors = (q_NHD, k_NKD, v_NKD, keys_SKTD, values_SKTD, length_N, seen_NHD)
        self._function(at, _is_half(q_NHD), *(each.data_ptr() for each in tensors))
        return seen_NHD


def look_for(keys: Tensor) -> Look | None:
    """What can be used with such a cache, if anything can."""
    found = _found() if _fits(keys) else None
    return None if found is None else found[0]


def between_for(weight: Tensor) -> Between | None:
    """What can be used with such weights, if anything can."""
    found = _found() if _fits(weight) else None
    return None if found is None else found[1]


def _fits(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.bfloat16)


@cache
def _found() -> tuple[Look, Between] | None:
    compiler = next((each for each in _compilers() if shutil.which(each[0])), None)
    if compiler is None:
        return None
    try:
        _share_threads()
        return _made(compiler)
    except (OSError, AttributeError, subprocess.SubprocessError) as error:
        told = (getattr(error, "stderr", None) or str(error)).strip()
        warnings.warn(
            f"decoding could not be compiled for this processor, so torch's own is used, which is slower: {told}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def _compilers() -> Sequence[list[str]]:
    own = shlex.split(os.environ.get("CXX", ""))
    return [*([own] if own else []), ["g++"], ["clang++"], ["c++"]]


def _share_threads() -> None:
    """Let a library find the OpenMP that torch has loaded."""
    with open("/proc/self/maps") as maps:
        loaded = {line.split(maxsplit=5)[-1].strip() for line in maps}
    theirs = sorted((each for each in loaded if _OPENMP.search(each)), key=lambda each: "/torch" not in each)
    if not theirs:
        raise OSError("torch has not loaded an OpenMP of the usual names")
    ctypes.CDLL(theirs[0], mode=ctypes.RTLD_GLOBAL)


def _made(compiler: Sequence[str]) -> tuple[Look, Between]:
    """From the cache, or compiled into it."""
    flags = (*_FLAGS, *(_X86_FLAGS if platform.machine() == "x86_64" else ()))
    parts = (_SOURCE.read_text(), _run(*compiler, "--version"), _processor(), " ".join(flags))
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    kept = cache_root() / "native" / f"decode-{digest}.so"
    with suppress(OSError, AttributeError):  # one that is not there, or not whole, is made anew
        if kept.with_suffix(".sha256").read_text() == _digest(kept):
            return Look(kept), Between(kept)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "decode.so")
        _run(*compiler, *flags, "-c", str(_SOURCE), "-o", f"{folder}/decode.o")
        _run(*compiler, "-shared", f"{folder}/decode.o", "-o", str(made))
        loaded = Look(made), Between(made)
        with suppress(OSError):  # nowhere to keep it
            kept.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=kept.parent) as passing:
                # To load half a library would end the process, so it is known by its sum, which comes after it.
                Path(passing, "sum").write_text(_digest(made))
                shutil.copyfile(made, Path(passing, "so")).replace(kept)
                Path(passing, "sum").replace(kept.with_suffix(".sha256"))
        return loaded


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True).stdout


def _processor() -> str:
    """What it is and can do: a cache may be shared by machines that differ."""
    with open("/proc/cpuinfo") as lines:
        told = {line.strip() for line in lines if line.lower().startswith(("flags", "features", "model", "cpu part"))}
    return "\n".join(sorted(told))
