"""Describes this machine as an Instance."""

import os
import platform
import time
from pathlib import Path

from dojang.planning.instances import GPUS, Gpu, Instance
from dojang.planning.kv_cache_memory import GIB

__all__ = ["HERE", "this_machine"]

HERE = "this machine"
_SIZE = 1024
_NAMES = {"A100": "A100-80GB", "H200": "H200", "H100": "H100", "A10G": "A10G", "L40S": "L40S", "L4": "L4"}
"""Our names of GPUs by a part of CUDA's names; the first match counts."""


def this_machine() -> Instance:
    """Instance with this machine's GPUs if torch sees any, else with its measured CPU speed."""
    import torch

    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    arm = platform.machine() == "aarch64"
    if torch.cuda.is_available():
        gpu, count = _gpu(torch.cuda.get_device_name(0)), torch.cuda.device_count()
        own = torch.cuda.get_device_properties(0).total_memory / GIB
        gpu = Gpu(gpu.name, own, gpu.tflops, gpu.bandwidth, gpu.link, gpu.network)
        return Instance(HERE, cores, min(memory, _allowed()), None, gpu, count, arm=arm)
    return Instance(HERE, cores, min(memory, _allowed()), None, cpu_gflops=_gflops(), arm=arm)


def _gpu(name: str) -> Gpu:
    """GPU by CUDA's name; an unknown one counts as the slowest."""
    return GPUS[next((ours for theirs, ours in _NAMES.items() if theirs in name), "L4")]


def _allowed() -> float:
    """Memory limit of the container in GiB."""
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return float("inf")
    return float("inf") if text == "max" else int(text) / GIB


def _gflops() -> float:
    """Measured GFLOP/s of float32 matmuls like those of a decoding step, on all cores."""
    import torch

    x, weight = torch.rand(64, _SIZE), torch.rand(_SIZE, _SIZE)
    torch.nn.functional.linear(x, weight)
    best = float("inf")
    for _ in range(30):
        started = time.perf_counter()
        torch.nn.functional.linear(x, weight)
        best = min(best, time.perf_counter() - started)
    return 2 * 64 * _SIZE * _SIZE / best / 1e9
