"""Out-of-memory errors of torch, explained: what was computed, which processes hold the memory, and what to do."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dojang.core.errors import OutOfMemory

__all__ = ["explain_out_of_memory", "is_out_of_memory"]

_TEXTS = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
_OWN_CONTEXT = 2 * 2**30
"""Bytes outside of torch's allocator that this process may hold itself: the CUDA context, kernels, NCCL."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed: torch's GPU allocator has its own exception type; the CPU allocator and libraries
    that allocate without torch have only a message."""
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in _TEXTS)


@contextmanager
def explain_out_of_memory(what: str, remedy: str) -> Iterator[None]:
    """Raises OutOfMemory, with the remedy, if there is too little memory for `what`."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        gpu = "CUDA" in str(error) or isinstance(error, torch.OutOfMemoryError)
        where, holders = ("the GPU", f" {_holders()}.") if gpu else ("this machine", "")
        cause = ". ".join(str(error).partition("\n")[0].split(". ")[:2])  # the rest is what _holders says
        raise OutOfMemory(f"{where} has too little memory for {what}: {remedy}.{holders} ({cause})") from error


def _holders() -> str:
    """Says which processes hold the GPU's memory, as far as torch can tell."""
    try:
        free, total = torch.cuda.mem_get_info()
        own, used = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
    except (RuntimeError, AssertionError):  # built without CUDA
        return "Another process on the GPU may hold the memory"
    held = (
        f"Of its {total / 2**30:.1f} GiB, this process holds {own / 2**30:.1f} GiB ({used / 2**30:.1f} GiB in use) and "
        f"{free / 2**30:.1f} GiB are free"
    )
    if (others := total - free - own) > _OWN_CONTEXT:
        held += (
            f"; other processes hold about {others / 2**30:.1f} GiB (`nvidia-smi` lists them): end them or use another "
            "GPU"
        )
    return held
