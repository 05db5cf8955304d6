"""TorchEngine: the built-in inference engine, with continuous batching in a background thread, on CPU or GPU.

Requests may arrive and be cancelled at any time; each is answered when its last sample finishes, while others still
decode. Weights are replaced between two decode steps, also while sequences are being decoded: every token records the
version that sampled it.

Every sample has its own random numbers (rng.py), so its tokens depend on the other sequences of the batch only through
floating-point rounding.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Literal, TypeVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dojang.core import cuda_sync
from dojang.core.checksum import checksum
from dojang.core.out_of_memory import explain_out_of_memory
from dojang.engine.decoder import Decoder
from dojang.engine.kv_cache import default_kv_cache_bytes
from dojang.engine.scheduler import Scheduler
from dojang.engine.sequence import Request
from dojang.engine.stop_criteria import StopCriteria, end_tokens
from dojang.engine.validate import check_clean, check_request
from dojang.engine.weight_update import StagedUpdate, apply_update, load_weights
from dojang.protocols import EngineState, WeightStore
from dojang.types import Completion, Metrics, Sampling

__all__ = ["TorchEngine"]

T = TypeVar("T")

_MORE_MEMORY = (
    "lower rollout.engine.kv_cache_gb, rollout.engine.prefix_cache_gb, rollout.engine.prefill_chunk_tokens or "
    "rollout.max_tokens"
)


@dataclass(eq=False)
class _Pending:
    """The future of a request, resolved from the engine's thread."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[list[Completion]] = field(init=False)

    def __post_init__(self) -> None:
        self.future = self.loop.create_future()

    def give(self, request: Request) -> None:
        self._settle(lambda: self.future.set_result(request.completions))

    def fail(self, error: BaseException) -> None:
        self._settle(lambda: self.future.set_exception(error))

    def cancel(self) -> None:
        self._settle(self.future.cancel)

    def _settle(self, how: Callable[[], object]) -> None:
        def settle() -> None:
            if not self.future.done():
                how()

        with suppress(RuntimeError):  # the caller's loop is closed
            self.loop.call_soon_threadsafe(settle)


class TorchEngine:
    """A ServingEngine with its own copy of the weights, updated from a weight store or by a sender."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        weights: WeightStore,
        *,
        max_num_seqs: int,
        kv_cache_gb: float | None = None,
        alone: bool = False,
        reserved: Callable[[], int] | None = None,
        prefill_chunk_tokens: int | None = None,
        prefix_cache_gb: float = 0.0,
        speculative_tokens: int = 0,
        context: int | None = None,
        threads: int | None = None,
        dtype: torch.dtype | None = None,
        float32_head: bool = False,
        quantization: Literal["none", "fp8"] = "none",
        weight_sync: Literal["full", "delta"] = "full",
    ) -> None:
        """`alone`: no other process or trainer uses the same GPU, so the KV cache may take most of it. `reserved`
        tells at the first request how many bytes trainers will still allocate there. `weight_sync`: load full weights
        or deltas."""
        decoder = Decoder(model, dtype, float32_head=float32_head, fp8=quantization == "fp8")
        self._device = decoder.device
        self._threads = threads
        """Number of CPU threads; None: torch's default."""
        stop_criteria = StopCriteria(tokenizer, end_tokens(model, tokenizer))
        self._vocabulary = decoder.shape.vocabulary
        budget = (
            max(1, int(kv_cache_gb * 2**30))
            if kv_cache_gb
            else partial(default_kv_cache_bytes, decoder.device, alone=alone, reserved=reserved)
        )
        self._scheduler = Scheduler(
            decoder,
            stop_criteria,
            max_num_seqs=max_num_seqs,
            budget=budget,
            prefill_chunk_tokens=prefill_chunk_tokens,
            prefix_cache=int(prefix_cache_gb * 2**30),
            context=context,
            speculative_tokens=speculative_tokens,
        )
        self._weights = weights
        self._deltas = weight_sync == "delta"
        self._loaded = False
        """Whether weights were loaded from the store: the first ones are full."""
        self._pause_s = 0.0
        """Seconds without decoding of the last update."""
        self._preempted = 0
        """Preempted sequences that the metrics have."""
        self._checksum: str | None = None
        """Checksum that the weights had after the last update; None: not known."""
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._new: list[tuple[Request, _Pending]] = []
        self._pending: dict[Request, _Pending] = {}
        self._closed = False
        self._update: StagedUpdate | None = None
        self._dirty = ""
        self._thread: threading.Thread | None = None

    async def generate(self, prompt: Sequence[int], n: int, sampling: Sampling) -> list[Completion]:
        self._check(prompt, sampling)
        loop = asyncio.get_running_loop()
        pending = _Pending(loop)
        request = Request(tuple(prompt), n, sampling, pending.give)
        if not self._new:
            loop.call_soon(self._submit)
        self._new.append((request, pending))
        try:
            with explain_out_of_memory("sampling", _MORE_MEMORY):
                return await pending.future
        except asyncio.CancelledError:
            self._inbox.put(lambda: self._drop(request))
            raise

    def _submit(self) -> None:
        """Submit all requests of one event loop iteration together, so that batches do not depend on timing."""
        new, self._new = self._new, []
        if self._closed:
            for _, pending in new:
                pending.cancel()
            return

        def take() -> None:
            for request, pending in new:
                if self._closed:
                    pending.cancel()
                elif not pending.future.cancelled():
                    self._accept(request, pending)

        self._post(take)

    async def load(self, version: int) -> Metrics:
        usable = self._deltas and self._loaded and not self._dirty
        base = self._scheduler.version if usable else None
        with explain_out_of_memory("the engine's weights", _MORE_MEMORY):
            whole = await load_weights(self.begin, self._weights, version, base=base)
        self._loaded = True
        before, self._preempted = self._preempted, self._scheduler.preempted
        figures = {"timing_s/load_pause": self._pause_s, "perf/preempted": float(self._preempted - before)}
        return figures | ({"weights/whole": float(whole)} if self._deltas else {})

    async def begin(self, version: int, *, base: int | None = None) -> StagedUpdate:
        if self._update is not None:
            raise ValueError(f"an update to version {self._update.version} is in progress")
        if base is not None and (self._dirty or base != self._scheduler.version):
            held = self._dirty or f"it holds version {self._scheduler.version}"
            raise ValueError(f"the engine cannot be updated from version {base}: {held}; send full weights")

        async def apply(update: StagedUpdate, expected: str | None) -> None:
            await self._run_in_thread(lambda: self._apply_update(update, expected))

        def on_end() -> None:
            self._update = None

        self._update = StagedUpdate(version, base, self._scheduler.weights, apply, on_end)
        return self._update

    async def checksum(self) -> str:
        return await self._run_in_thread(self._find_checksum)

    async def state(self) -> EngineState:
        if self._closed:
            raise RuntimeError("the engine is closed")
        scheduler = self._scheduler
        return EngineState(scheduler.version, scheduler.running, scheduler.waiting, self._dirty)

    async def close(self) -> None:
        self._closed = True
        if self._thread is not None:
            self._inbox.put(lambda: None)
            await asyncio.to_thread(self._thread.join)

    def _check(self, prompt: Sequence[int], sampling: Sampling) -> None:
        if self._closed:
            raise RuntimeError("the engine is closed")
        check_clean(self._dirty)
        check_request(prompt, sampling, self._scheduler.context, self._vocabulary)
        self._scheduler.check(len(prompt) + sampling.max_tokens)

    async def _run_in_thread(self, command: Callable[[], T]) -> T:
        """Run a command in the engine's thread, between two steps."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def do() -> None:
            try:
                if self._closed:
                    raise RuntimeError("the engine is closed")
                result = command()
            except BaseException as error:
                _resolve(loop, done, None, error)
            else:
                _resolve(loop, done, result, None)

        self._post(do)
        return await done

    def _post(self, command: Callable[[], None]) -> None:
        if self._closed:
            raise RuntimeError("the engine is closed")
        self._inbox.put(command)
        if self._thread is None:
            started = threading.Event()
            caller_threads = torch.get_num_threads()
            self._thread = threading.Thread(target=self._thread_main, args=[started], name="rollout", daemon=True)
            self._thread.start()
            started.wait()
            torch.set_num_threads(caller_threads)  # the thread's own setting would become the default of later threads

    # In the thread ----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _thread_main(self, started: threading.Event) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        torch.get_num_threads()  # fixes this thread's number now; torch reads a shared default at the first call
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)  # a new thread starts on device 0
            cuda_sync.synchronize()  # the weights were copied on another stream
            # The small kernels of decoding go before the large ones of a trainer on the same GPU.
            torch.cuda.set_stream(torch.cuda.Stream(priority=-1))  # type: ignore[no-untyped-call]
        started.set()
        while not self._closed:
            self._run_commands()
            if self._closed:
                break
            if self._scheduler.busy:
                try:
                    self._scheduler.step()
                except Exception as error:
                    self._fail(error)
        for pending in self._pending.values():
            pending.cancel()
        with suppress(Empty):
            while True:
                self._inbox.get(block=False)()  # they fail with "the engine is closed"

    def _run_commands(self) -> None:
        """Run all posted commands; block for the next one when idle."""
        with suppress(Empty):
            self._inbox.get(block=not self._scheduler.busy)()
            while not self._closed:
                self._inbox.get(block=False)()

    def _apply_update(self, update: StagedUpdate, expected: str | None) -> None:
        if update.base is not None and update.base != self._scheduler.version:
            raise ValueError(
                f"the update starts from version {update.base}, but the engine now holds {self._scheduler.version}"
            )
        self._checksum = None
        try:
            with self._scheduler.updating_weights(update.version):  # steps in flight have ended
                started = time.monotonic()
                apply_update(update, self._scheduler.weights, expected)
            if self._device.type == "cuda":
                torch.cuda.current_stream(self._device).synchronize()
            self._pause_s = time.monotonic() - started  # with what follows from the weights, such as those in 8 bits
        except BaseException as error:
            self._dirty = f"the update to version {update.version} failed ({type(error).__name__}: {error})"
            self._fail(RuntimeError(self._dirty))
            raise
        self._dirty, self._checksum = "", expected

    def _find_checksum(self) -> str:
        if self._checksum is None:
            self._checksum = checksum(self._scheduler.weights)
        return self._checksum

    def _accept(self, request: Request, pending: _Pending) -> None:
        deliver = request.deliver

        def give(done: Request) -> None:
            self._pending.pop(request, None)
            deliver(done)

        request.deliver = give
        self._pending[request] = pending
        try:
            check_clean(self._dirty)
            self._scheduler.add(request)
        except Exception as error:
            self._drop(request)
            pending.fail(error)

    def _drop(self, *requests: Request) -> None:
        for request in requests:
            self._pending.pop(request, None)
        self._scheduler.drop(set(requests))

    def _fail(self, error: Exception) -> None:
        """Fail all pending requests and drop their sequences: after an error their state is unknown."""
        waiting = dict(self._pending)
        self._drop(*waiting)
        for pending in waiting.values():
            pending.fail(error)


def _resolve(
    loop: asyncio.AbstractEventLoop, done: "asyncio.Future[Any]", result: Any, error: BaseException | None
) -> None:
    with suppress(RuntimeError):  # the caller's loop is closed
        loop.call_soon_threadsafe(_set, done, result, error)


def _set(done: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if not done.done():
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)
