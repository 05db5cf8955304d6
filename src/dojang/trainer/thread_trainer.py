"""Runs a trainer in a separate thread, so that rollouts go on while it computes.

A trainer's methods are coroutines that compute without a pause: in the loop's thread nothing else would run meanwhile.
All calls run in one thread, one after another, with the caller's number of CPU threads, so they compute the same as in
the caller's thread. On a GPU they run on their own CUDA stream: on a shared one the kernels of trainer and engine would
wait for each other.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from dojang.core import cuda_sync
from dojang.protocols import Trainer
from dojang.trainer.forwarding import ForwardingTrainer

__all__ = ["ThreadTrainer"]


class ThreadTrainer(ForwardingTrainer):
    """A Trainer that forwards to another one, in a thread."""

    def __init__(self, trainer: Trainer, device: torch.device) -> None:
        self._trainer = trainer
        self._device = device
        if device.type == "cuda" and device.index is None:
            self._device = torch.device("cuda", torch.cuda.current_device())  # a new thread starts on device 0
        self._stream: torch.cuda.Stream | None = None
        self._threads = torch.get_num_threads()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="trainer", initializer=self._begin)

    async def close(self) -> None:
        await super().close()
        self._executor.shutdown()

    async def _call(self, method: str, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._run, method, arguments)

    # In the thread ----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        torch.set_num_threads(self._threads)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
            cuda_sync.synchronize()  # the model was loaded on the default stream
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def _run(self, method: str, arguments: tuple[Any, ...]) -> Any:
        on_stream: AbstractContextManager[Any] = nullcontext()
        if self._stream is not None:
            on_stream = torch.cuda.stream(self._stream)
        with on_stream:
            found = asyncio.run(getattr(self._trainer, method)(*arguments))
        if self._stream is not None:
            self._stream.synchronize()  # others may read what was computed, such as published weights
        return found
