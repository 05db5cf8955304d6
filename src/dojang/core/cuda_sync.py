"""Waiting for the whole GPU, which CUDA refuses in every thread while any of them captures a graph."""

import threading

import torch

__all__ = ["capturing", "synchronize"]

capturing = threading.Lock()
"""Held by a thread that captures a CUDA graph, which begins by waiting for the whole GPU itself."""


def synchronize(device: torch.device | None = None) -> None:
    """Waits until all streams of a GPU (default: the thread's) are done."""
    with capturing:
        torch.cuda.synchronize(device)
