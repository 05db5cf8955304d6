"""C++ operations for decoding on a CPU (cpu_ops.cpp): decode attention and the element-wise steps.

torch's attention is made for queries of many tokens, and its other operations take more calls than a decode step has
work. The C++ is compiled at first use, for this CPU, and cached; without a compiler torch's operations are used. It
shares torch's threads: it links to the OpenMP runtime that torch has loaded, since the threads of two runtimes would
compete.
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

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dojang.core.child_process import run_child
from dojang.core.paths import cache_root

__all__ = ["CompiledAttention", "CompiledElementwise", "compiled_attention_for", "compiled_elementwise_for"]

_SOURCE = Path(__file__).with_name("cpu_ops.cpp")
_FLAGS = (
    *("-std=c++17", "-O3", "-march=native", "-fPIC", "-fopenmp"),
    # Let sums be reordered for vectorization; not -ffast-math, which changes the arithmetic of the whole process.
    *("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math", "-ffp-contract=fast"),
)
_X86_FLAGS = ("-mprefer-vector-width=512",)
_OPENMP = re.compile(r"/lib(gomp|iomp5|omp)[-.][^/]*$")


class _CacheLayout(ctypes.Structure):
    """Same struct as in cpu_ops.cpp."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "heads", "group", "size", "page", "head")),
        *((name, ctypes.c_int64) for name in ("tokens", "table_row", "q_row", "k_row", "v_row", "window")),
        ("scale", ctypes.c_float),
        ("cap", ctypes.c_float),
    )


class _HeadLayout(ctypes.Structure):
    """Same struct as in cpu_ops.cpp."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "queries", "keys", "size", "rotated", "row")),
        ("epsilon", ctypes.c_float),
        ("offset", ctypes.c_float),
    )


class CompiledElementwise:
    """Compiled element-wise operations. Tensors must be contiguous."""

    def __init__(self, library: Path) -> None:
        # PyDLL keeps the GIL: the calls take microseconds, and releasing it would take longer.
        functions = ctypes.PyDLL(str(library))
        self._add_rms_norm, self._rotary, self._silu_mul = (
            functions.dojang_add_rms_norm,
            functions.dojang_rotary,
            functions.dojang_silu_mul,
        )
        size, address = ctypes.c_int64, ctypes.c_void_p
        self._add_rms_norm.argtypes = [size, size, ctypes.c_float, ctypes.c_float, ctypes.c_int, *[address] * 4]
        self._rotary.argtypes = [ctypes.POINTER(_HeadLayout), ctypes.c_int, *[address] * 6]
        self._silu_mul.argtypes = [size, size, ctypes.c_int, *[address] * 2]
        for each in (self._add_rms_norm, self._rotary, self._silu_mul):
            each.restype = None

    def add_rms_norm(
        self, x_NE: Tensor, y_NE: Tensor | None, weight_E: Tensor, epsilon: float, *, offset: float
    ) -> Tensor:
        """Add y to x in place, and return the RMS norm of the sum, times offset + weight."""
        assert x_NE.is_contiguous()
        assert y_NE is None or (y_NE.is_contiguous() and y_NE.shape == x_NE.shape)
        result_NE = torch.empty_like(x_NE)
        given = (_address(each) for each in (x_NE, y_NE, weight_E, result_NE))
        self._add_rms_norm(*x_NE.shape, epsilon, offset, _is_half(x_NE), *given)
        return result_NE

    def rotary(
        self,
        qkv_NGD: Tensor,
        heads: tuple[int, int],
        rotation: tuple[Tensor, Tensor, Tensor] | None,
        norms: tuple[Tensor | None, Tensor | None],
        epsilon: float,
        *,
        offset: float,
    ) -> None:
        """Normalise (if norm weights are given) and rotate queries and keys in place; `heads` is the number of each.
        `rotation` is cosines and sines by position, [T, R], and the positions."""
        assert all(each.is_contiguous() for each in (qkv_NGD, *(rotation or ())))
        assert rotation is None or rotation[2].dtype is torch.int64
        rows, _, size = qkv_NGD.shape
        rotated = 0 if rotation is None else rotation[0].shape[1]
        at = _HeadLayout(rows, *heads, size, rotated, qkv_NGD.stride(0), epsilon, offset)
        given = (qkv_NGD, *(rotation or (None, None, None)), *norms)
        self._rotary(at, _is_half(qkv_NGD), *(_address(each) for each in given))

    def silu_mul(self, gate_up_NF: Tensor) -> Tensor:
        """SwiGLU: silu(first half of each row) times the second half."""
        assert gate_up_NF.is_contiguous()
        rows, size = gate_up_NF.shape
        result_NF = gate_up_NF.new_empty(rows, size // 2)
        self._silu_mul(rows, size // 2, _is_half(gate_up_NF), gate_up_NF.data_ptr(), result_NF.data_ptr())
        return result_NF


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _is_half(tensor: Tensor) -> bool:
    return tensor.dtype is torch.bfloat16


class CompiledAttention:
    """Compiled decode attention."""

    def __init__(self, library: Path) -> None:
        self._function = ctypes.CDLL(str(library)).dojang_attend
        self._function.argtypes = [ctypes.POINTER(_CacheLayout), ctypes.c_int, *[ctypes.c_void_p] * 8]
        self._function.restype = None

    def __call__(
        self,
        q_NHD: Tensor,
        k_NKD: Tensor,
        v_NKD: Tensor,
        keys_PKTD: Tensor,
        values_PKTD: Tensor,
        page_table: NDArray[np.int32],
        length_N: Tensor,
        *,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
    ) -> Tensor:
        """Attend a token of each of the first N rows of the page table to its sequence, [N, H, D]. Stores its key and
        value at position length - 1, before any token attends: several rows may be tokens of one sequence. `scale`,
        `window` and `softcap` are those of `Shape`."""
        rows, heads, size = k_NKD.shape
        assert all(each.stride()[1:] == (size, 1) for each in (q_NHD, k_NKD, v_NKD))
        assert keys_PKTD.stride() == values_PKTD.stride()
        assert keys_PKTD.stride()[2:] == (size, 1)
        assert page_table.dtype == np.int32
        assert page_table.strides[1] == page_table.itemsize
        at = _CacheLayout(
            *(rows, heads, q_NHD.shape[1] // heads, size, *keys_PKTD.stride()[:2]),
            *(keys_PKTD.shape[2], page_table.strides[0] // page_table.itemsize),
            *(each.stride(0) for each in (q_NHD, k_NKD, v_NKD)),
            *(window, scale * math.log2(math.e), softcap * math.log2(math.e)),
        )
        out_NHD = q_NHD.new_empty(q_NHD.shape)
        cache = (each.data_ptr() for each in (keys_PKTD, values_PKTD))
        tokens = (each.data_ptr() for each in (q_NHD, k_NKD, v_NKD))
        self._function(
            at, _is_half(q_NHD), *tokens, *cache, page_table.ctypes.data, length_N.data_ptr(), out_NHD.data_ptr()
        )
        return out_NHD


def compiled_attention_for(keys: Tensor) -> CompiledAttention | None:
    """Return compiled attention for such a KV cache; None if its device or type is not supported."""
    found = _compiled() if _is_supported(keys) else None
    return None if found is None else found[0]


def compiled_elementwise_for(weight: Tensor) -> CompiledElementwise | None:
    """Return compiled element-wise operations for such weights; None if their device or type is not supported."""
    found = _compiled() if _is_supported(weight) else None
    return None if found is None else found[1]


def _is_supported(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.bfloat16)


@cache
def _compiled() -> tuple[CompiledAttention, CompiledElementwise] | None:
    compiler = next((each for each in _compilers() if shutil.which(each[0])), None)
    if compiler is None:
        return None
    try:
        _load_torch_openmp()
        return _load_or_compile(compiler)
    except (OSError, AttributeError, subprocess.SubprocessError) as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip()
        warnings.warn(
            f"the C++ decode operations could not be compiled for this CPU, so torch's slower ones are used: {reason}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def _compilers() -> Sequence[list[str]]:
    chosen = shlex.split(os.environ.get("CXX", ""))
    return [*([chosen] if chosen else []), ["g++"], ["clang++"], ["c++"]]


def _load_torch_openmp() -> None:
    """Make torch's OpenMP runtime visible to libraries loaded later."""
    with open("/proc/self/maps") as maps:
        loaded = {line.split(maxsplit=5)[-1].strip() for line in maps}
    runtimes = sorted((each for each in loaded if _OPENMP.search(each)), key=lambda each: "/torch" not in each)
    if not runtimes:
        raise OSError("torch has loaded no OpenMP runtime (libgomp, libiomp5 or libomp)")
    ctypes.CDLL(runtimes[0], mode=ctypes.RTLD_GLOBAL)


def _load_or_compile(compiler: Sequence[str]) -> tuple[CompiledAttention, CompiledElementwise]:
    """Load the library from the cache, or compile it and add it to the cache."""
    flags = (*_FLAGS, *(_X86_FLAGS if platform.machine() == "x86_64" else ()))
    parts = (_SOURCE.read_text(), _run(*compiler, "--version"), _cpu_features(), " ".join(flags))
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    cached = cache_root() / "native" / f"decode-{digest}.so"
    with suppress(OSError, AttributeError):  # missing or incomplete: compile it again
        if cached.with_suffix(".sha256").read_text() == _digest(cached):
            return CompiledAttention(cached), CompiledElementwise(cached)
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder, "decode.so")
        _run(*compiler, *flags, "-c", str(_SOURCE), "-o", f"{folder}/decode.o")
        _run(*compiler, "-shared", f"{folder}/decode.o", "-o", str(built))
        loaded = CompiledAttention(built), CompiledElementwise(built)
        try:
            cached.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cached.parent) as temporary:
                # Loading half a library would crash the process, so its checksum is written after it and compared.
                Path(temporary, "sum").write_text(_digest(built))
                shutil.copyfile(built, Path(temporary, "so")).replace(cached)
                Path(temporary, "sum").replace(cached.with_suffix(".sha256"))
        except OSError as error:
            warnings.warn(
                f"the compiled decode operations cannot be kept in {cached.parent} ({error.strerror}), so every run "
                "compiles them again; set DOJANG_CACHE to a directory that can be written",
                RuntimeWarning,
                stacklevel=2,
            )
        return loaded


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _run(*command: str) -> str:
    return run_child(command)  # without a time limit: a busy machine may take minutes


def _cpu_features() -> str:
    """CPU model and features: machines with different CPUs may share a cache."""
    with open("/proc/cpuinfo") as lines:
        found = {line.strip() for line in lines if line.lower().startswith(("flags", "features", "model", "cpu part"))}
    return "\n".join(sorted(found))
