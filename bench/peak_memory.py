"""Peak memory of a program that runs in this process."""

import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path

__all__ = ["measured"]

MIB = 2**20


def measured(out: Path, program: Callable[[], None]) -> None:
    """Runs a program, and writes its peak memory, in megabytes, however it ends.

    `rss` is the resident memory of the process. With a GPU, `allocated` is that of tensors, and `reserved` that of
    torch's allocator, which keeps what tensors have freed. Neither counts the CUDA context, nor other processes.
    """
    try:
        program()
    finally:
        out.write_text(json.dumps(_peaks()))


def _peaks() -> dict[str, float]:
    found = {"rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    torch = sys.modules.get("torch")  # a program that has not imported it used no GPU
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        found["allocated"] = torch.cuda.max_memory_allocated() / MIB
        found["reserved"] = torch.cuda.max_memory_reserved() / MIB
    return found
