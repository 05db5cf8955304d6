"""The engine that computes: continuous batching on any processor, in a thread of its own.

Requests may come and go at any time; each is answered when its last sample ends, while others still decode. Weights are
replaced between two steps, also under sequences that are being written: every token knows which version drew it.

Tokens are drawn with numbers that belong to the sample alone (rng.py), so what is sampled depends on the company it is
decoded in only through floating-point rounding.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dojang.core.checksum import checksum
from dojang.engine.decoder import Decoder
from dojang.engine.kv_cache import spare_memory
from dojang.engine.scheduler import Batch
from dojang.engine.sequence import Request
from dojang.engine.stop_criteria import Stopper
from dojang.engine.validate import check_clean, check_request
from dojang.engine.weight_update import StagedUpdate, bring, write
from dojang.protocols import Abilities, EngineState, Pause, WeightStore
from dojang.types import Completion, Sampling

__all__ = ["TorchEngine"]

T = TypeVar("T")
_ABILITIES = Abilities(
    pauses=frozenset(("abort", "wait", "keep", "recompute")),
    resumes=True,
    patches=True,
    repeats=True,
    frees_memory=True,
)


@dataclass(eq=False)
class _Asked:
    """Somebody who waits for a request."""

    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[list[Completion]] = field(init=False)

    def __post_init__(self) -> None:
        self.answer = self.loop.create_future()

    def give(self, request: Request) -> None:
        self._settle(lambda: self.answer.set_result(request.completions))

    def fail(self, error: BaseException) -> None:
        self._settle(lambda: self.answer.set_exception(error))

    def cancel(self) -> None:
        self._settle(self.answer.cancel)

    def _settle(self, how: Callable[[], object]) -> None:
        def settle() -> None:
            if not self.answer.done():
                how()

        with suppress(RuntimeError):  # a loop that is closed has nobody waiting
            self.loop.call_soon_threadsafe(settle)


class TorchEngine:
    """A ServingEngine with weights of its own, refreshed from a weight store or by updates."""

    abilities = _ABILITIES

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        weights: WeightStore,
        *,
        slots: int,
        kv_gb: float | None = None,
        alone: bool = False,
        chunk: int | None = None,
        context: int | None = None,
        threads: int | None = None,
        dtype: torch.dtype | None = None,
        float32_head: bool = False,
    ) -> None:
        """`alone` if no other process or trainer uses the same GPU: the KV cache is sized by it."""
        decoder = Decoder(model, dtype, float32_head=float32_head)
        self._device = decoder.device
        self._threads = threads
        """How many of the processor's to use; None for torch's own choice."""
        stopper = Stopper(tokenizer, _end_tokens(model, tokenizer))
        self._vocabulary = decoder.shape.vocabulary
        budget = max(1, int(kv_gb * 2**30)) if kv_gb else partial(spare_memory, decoder.device, alone=alone)
        self._batch = Batch(decoder, stopper, slots=slots, budget=budget, chunk=chunk, context=context)
        self._weights = weights
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._fresh: list[tuple[Request, _Asked]] = []
        self._asked: dict[Request, _Asked] = {}
        self._held: list[Request] | None = None
        """Requests that have come while the engine waits for others to end; None if it does not."""
        self._drained: list[Callable[[BaseException | None], None]] = []
        """Tells those who wait for others to end that it is so, or why not."""
        self._paused = False
        self._recompute = False
        self._closed = False
        self._update: StagedUpdate | None = None
        self._dirty = ""
        self._thread: threading.Thread | None = None

    async def generate(
        self, prompt: Sequence[int], n: int, sampling: Sampling, *, resume: Mapping[int, Completion] | None = None
    ) -> list[Completion]:
        self._check(prompt, sampling, resume or {})
        loop = asyncio.get_running_loop()
        asked = _Asked(loop)
        request = Request(tuple(prompt), n, sampling, asked.give, resume or {})
        if not self._fresh:
            loop.call_soon(self._hand_over)
        self._fresh.append((request, asked))
        try:
            return await asked.answer
        except asyncio.CancelledError:
            self._inbox.put(lambda: self._drop(request))
            raise

    def _hand_over(self) -> None:
        """What was asked in one turn of the event loop enters together: batches must not depend on the clock."""
        fresh, self._fresh = self._fresh, []
        if self._closed:
            for _, asked in fresh:
                asked.cancel()
            return

        def take() -> None:
            for request, asked in fresh:
                if self._closed:
                    asked.cancel()
                elif not asked.answer.cancelled():
                    self._take(request, asked)

        self._tell(take)

    async def load(self, version: int) -> None:
        await bring(await self.begin(version), lambda: self._weights.fetch(version))

    async def begin(self, version: int, *, base: int | None = None) -> StagedUpdate:
        if self._update is not None:
            raise ValueError(f"an update to version {self._update.version} is under way")
        if base is not None and (self._dirty or base != self._batch.version):
            held = self._dirty or f"it holds version {self._batch.version}"
            raise ValueError(f"the engine cannot be updated from version {base}: {held}; send whole weights")

        async def take(update: StagedUpdate, expected: str | None) -> None:
            await self._do(lambda: self._take_over(update, expected))

        def forget() -> None:
            self._update = None

        self._update = StagedUpdate(version, base, self._batch.weights, take, forget)
        return self._update

    async def checksum(self) -> str:
        return await self._do(lambda: checksum(self._batch.weights))

    async def state(self) -> EngineState:
        if self._closed:
            raise RuntimeError("the engine is closed")
        batch = self._batch
        return EngineState(batch.version, batch.running, batch.waiting, self._paused, self._dirty)

    async def abort(self) -> None:
        """End all requests where they are; those who wait get what there is, marked as aborted."""
        await self._do(self._abort)

    async def pause(self, mode: Pause) -> None:
        """Stop after the current step, or, to wait, when all that was asked so far has ended."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def settle(error: BaseException | None = None) -> None:
            _answer(loop, done, None, error)

        def begin() -> None:
            if mode == "abort":
                self._abort()
            if mode == "wait" and self._batch.busy:
                self._paused = False
                self._held = self._held or []
                self._drained.append(settle)
            else:
                self._paused, self._recompute = True, mode == "recompute"
                settle()

        await self._do(begin)
        await done

    async def resume(self) -> None:
        """Go on."""
        await self._do(self._go_on)

    async def sleep(self) -> None:
        """Pause, and give back the memory of keys and values; `wake` takes it anew."""

        def lie_down() -> None:
            self._paused = True
            self._batch.sleep()

        await self._do(lie_down)

    async def wake(self) -> None:
        await self.resume()

    async def close(self) -> None:
        self._closed = True
        if self._thread is not None:
            self._inbox.put(lambda: None)
            await asyncio.to_thread(self._thread.join)

    def _check(self, prompt: Sequence[int], sampling: Sampling, resume: Mapping[int, Completion]) -> None:
        if self._closed:
            raise RuntimeError("the engine is closed")
        check_clean(self._dirty)
        past = (token for each in resume.values() for token in each.tokens)
        check_request(prompt, sampling, self._batch.context, self._vocabulary, past)
        self._batch.check(len(prompt) + sampling.max_tokens)

    async def _do(self, what: Callable[[], T]) -> T:
        """Have the thread do something between two steps."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def do() -> None:
            try:
                if self._closed:
                    raise RuntimeError("the engine is closed")
                result = what()
            except BaseException as error:
                _answer(loop, done, None, error)
            else:
                _answer(loop, done, result, None)

        self._tell(do)
        return await done

    def _tell(self, command: Callable[[], None]) -> None:
        if self._closed:
            raise RuntimeError("the engine is closed")
        self._inbox.put(command)
        if self._thread is None:
            begun = threading.Event()
            others = torch.get_num_threads()
            self._thread = threading.Thread(target=self._work, args=[begun], name="rollout", daemon=True)
            self._thread.start()
            begun.wait()
            torch.set_num_threads(others)  # what a thread has set for itself, later ones would begin with

    # In the thread ----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _work(self, begun: threading.Event) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        torch.get_num_threads()  # a thread gets its number when it first asks, from one that all share
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)  # a thread begins with the first one
        begun.set()
        while not self._closed:
            self._listen()
            if self._closed:
                break
            if self._batch.busy and not self._paused:
                try:
                    self._batch.step()
                except Exception as error:
                    self._fail(error)
            if self._drained and not self._batch.busy:
                self._paused = True
                self._tell_drained(None)
        self._tell_drained(RuntimeError("the engine is closed"))
        for asked in self._asked.values():
            asked.cancel()
        with suppress(Empty):
            while True:
                self._inbox.get(block=False)()  # they find the engine closed

    def _listen(self) -> None:
        """Do what was asked; wait for it if there is nothing else to do."""
        with suppress(Empty):
            self._inbox.get(block=self._paused or not self._batch.busy)()
            while not self._closed:
                self._inbox.get(block=False)()

    def _tell_drained(self, error: BaseException | None) -> None:
        waiting, self._drained = self._drained, []
        for settle in waiting:
            settle(error)

    def _take_over(self, update: StagedUpdate, expected: str | None) -> None:
        if update.base is not None and update.base != self._batch.version:
            raise ValueError(f"version {update.base} was replaced by {self._batch.version} meanwhile")
        try:
            with self._batch.changing(update.version):
                write(update, self._batch.weights, expected)
        except BaseException as error:
            self._dirty = f"the update to version {update.version} broke off ({type(error).__name__}: {error})"
            self._fail(RuntimeError(self._dirty))
            raise
        self._dirty = ""

    def _take(self, request: Request, asked: _Asked) -> None:
        deliver = request.deliver

        def give(done: Request) -> None:
            self._asked.pop(request, None)
            deliver(done)

        request.deliver = give
        self._asked[request] = asked
        if self._held is not None and not self._dirty:
            self._held.append(request)
        else:
            self._enter(request)

    def _enter(self, request: Request) -> None:
        try:
            check_clean(self._dirty)
            self._batch.add(request)
        except Exception as error:
            asked = self._asked[request]
            self._drop(request)
            asked.fail(error)

    def _drop(self, *requests: Request) -> None:
        for request in requests:
            self._asked.pop(request, None)
            if self._held is not None and request in self._held:
                self._held.remove(request)
        self._batch.drop(set(requests))

    def _abort(self) -> None:
        held, self._held = self._held, None if self._held is None else []
        for request in held or []:
            self._enter(request)
        self._batch.abort(set(self._asked))

    def _go_on(self) -> None:
        self._paused = False
        if self._recompute:
            self._batch.recompute()
            self._recompute = False
        self._tell_drained(RuntimeError("the engine was resumed before all had ended"))
        held, self._held = self._held or [], None
        for request in held:
            self._enter(request)

    def _fail(self, error: Exception) -> None:
        """Something that fails leaves nobody knows what: whoever waits is told, and the engine begins anew."""
        waiting = dict(self._asked)
        self._drop(*waiting)
        for asked in waiting.values():
            asked.fail(error)


def _answer(
    loop: asyncio.AbstractEventLoop, done: "asyncio.Future[Any]", result: Any, error: BaseException | None
) -> None:
    with suppress(RuntimeError):  # a loop that is closed has nobody waiting
        loop.call_soon_threadsafe(_set, done, result, error)


def _set(done: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if not done.done():
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)


def _end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Chat models may declare several ends; the tokenizer's own always counts."""
    declared = model.generation_config.eos_token_id if model.generation_config is not None else None
    ends = {tokenizer.eos_token_id, *(declared if isinstance(declared, list) else [declared])}
    return frozenset(token for token in ends if isinstance(token, int))
