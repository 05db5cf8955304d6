"""Base of the vLLM engines: requests, pauses and weight updates, over any connection to vLLM (vllm.py, remote.py).

Every sample is one vLLM request with its own seed. Requests that arrive during a pause are held back here, so vLLM gets
none while it is paused. Requests share prefix-cached keys and values (`salt`), but not across a weight update: keys and
values of older weights are not used for new requests.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from transformers import PreTrainedTokenizerBase

from dojang.engine.stop_criteria import StopCriteria
from dojang.engine.validate import check_clean, check_request
from dojang.engine.weight_update import StagedUpdate, send_and_commit
from dojang.inference.vllm_protocol import INITIAL, VllmOutput, completed, parameters
from dojang.protocols import EngineCapabilities, EngineState, Pause, WeightStore
from dojang.types import Completion, Metrics, Sampling
from dojang.weight_sync.weight_files import WeightFiles

__all__ = ["ModelInfo", "VllmBaseEngine", "VllmConnection"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Properties of the served model."""

    context: int
    vocabulary: int | None
    """Vocabulary size; None if unknown (the server rejects unknown tokens)."""
    version: int | None
    """Version of the weights; None if an update was started and never finished."""


class VllmConnection(Protocol):
    """A connection to vLLM. Failures raise RuntimeError, rejected requests ValueError."""

    async def ready(self) -> ModelInfo:
        """Wait until vLLM accepts requests; immediate after the first call."""

    async def generate(self, prompt: Sequence[int], wanted: Mapping[str, Any], salt: Callable[[], str]) -> VllmOutput:
        """Sample one completion. Cancelling also aborts it in vLLM. `salt` is called when the request is sent."""

    async def abort(self) -> None:
        """Abort all running samples, and return when they have been delivered."""

    async def pause(self) -> None:
        """Stop between two tokens, keeping running requests."""

    async def resume(self) -> None:
        """Continue after a pause."""

    async def forget(self) -> None:
        """Drop all keys and values; running requests recompute them."""

    async def update(self, info: Mapping[str, Any], label: str) -> None:
        """Load the weights of a file while paused."""

    async def sleep(self) -> None: ...

    async def wake(self) -> None: ...

    async def state(self) -> int | None:
        """Return the version of the weights, None during an update. Raises if vLLM cannot be reached."""

    async def close(self) -> None: ...


class VllmBaseEngine:
    """A ServingEngine over a connection to vLLM."""

    capabilities: EngineCapabilities

    def __init__(
        self,
        connection: VllmConnection,
        weight_files: WeightFiles,
        tokenizer: PreTrainedTokenizerBase,
        weights: WeightStore | None,
    ) -> None:
        self._connection, self._weight_files, self._weights = connection, weight_files, weights
        self._stop_criteria = StopCriteria(tokenizer, frozenset((tokenizer.eos_token_id,)))
        self._version: int | None = None
        """None before the first contact with vLLM, and during an update by another client."""
        self._known = False
        """Whether the version was read from vLLM."""
        self._loaded = False
        """Whether weights were loaded since vLLM was started."""
        self._salt = secrets.token_hex(8)
        self._tasks: set[asyncio.Task[Completion]] = set()
        self._running = 0
        self._gate: asyncio.Event | None = None
        """Event that new requests wait for; None if the gate is open."""
        self._stopped = False
        """Whether vLLM is paused by `pause` or `sleep`, not only for an update."""
        self._closing = 0
        """Number of pauses and updates in progress."""
        self._resumes = 0
        self._managing = asyncio.Lock()
        """Serializes pauses, resumes and updates."""
        self._aborts = 0
        self._update: StagedUpdate | None = None
        self._dirty = ""
        self._sent: Metrics = {}
        """Metrics of the last update."""
        self._closed = False

    async def generate(
        self, prompt: Sequence[int], n: int, sampling: Sampling, *, resume: Mapping[int, Completion] | None = None
    ) -> list[Completion]:
        self._check_open()
        facts = await self._ready()
        check_clean(self._dirty)
        check_request(prompt, sampling, facts.context, facts.vocabulary)
        past = resume or {}
        tasks = [
            asyncio.create_task(self._sample(facts, tuple(prompt), index, sampling, past.get(index)))
            for index in range(n)
        ]
        self._tasks.update(tasks)
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()  # no effect on finished tasks
            self._tasks.difference_update(tasks)

    async def _sample(
        self, facts: ModelInfo, prompt: tuple[int, ...], index: int, sampling: Sampling, past: Completion | None
    ) -> Completion:
        if past and past.finish != "abort":
            return past
        done = past.tokens if past else ()
        left = min(sampling.max_tokens, facts.context - len(prompt)) - len(done)
        if past and left <= 0:
            return replace(past, finish="length")
        if not await self._wait_for_gate():
            return completed(past, VllmOutput((), (), "abort"), self._version or 0, sampling, self._stop_criteria)
        check_clean(self._dirty)
        version, loaded = self._version or 0, self._loaded
        self._running += 1
        try:
            output = await self._connection.generate(
                prompt + done, parameters(sampling, index, len(done), left), lambda: self._salt
            )
        finally:
            self._running -= 1
        if loaded and any(label == INITIAL for label, _, _ in output.versions):
            self._dirty = "vLLM was restarted and holds its initial weights"
        check_clean(self._dirty)
        return completed(past, output, version, sampling, self._stop_criteria)

    async def load(self, version: int) -> Metrics:
        self._check_open()
        weights = self._weights
        if weights is None:
            raise ValueError("the engine has no weight store to load from")
        if not (self._weight_files.deltas and self._weight_files.known and await self._load_changes(weights, version)):
            await send_and_commit(await self.begin(version), lambda: weights.fetch(version))
        return self._sent

    async def _load_changes(self, weights: WeightStore, version: int) -> bool:
        """Load a delta; False if full weights must be sent instead."""
        base = self._version
        try:
            if (held := await self._connection.state()) != base or base is None:
                raise ValueError(f"vLLM holds version {held}, not {base}")
            if (changes := weights.changes(base, version)) is None:
                raise ValueError(f"the changes since version {base} are not available")
            await send_and_commit(
                await self.begin(version, base=base), lambda: changes.tensors, changes.patches, changes.checksum
            )
        except (RuntimeError, ValueError) as error:
            logger.warning("sending the full weights of version %d instead of a delta: %s", version, error)
            return False
        return True

    async def begin(self, version: int, *, base: int | None = None) -> StagedUpdate:
        self._check_open()
        if not self.capabilities.patches:
            raise NotImplementedError("this server does not accept weights")
        await self._ready()
        if self._update is not None:
            raise ValueError(f"an update to version {self._update.version} is in progress")
        if base is not None:
            reason = self._dirty or ("" if base == self._version else f"it holds version {self._version}")
            if not reason and not self._weight_files.known:
                reason = "its initial weights cannot be read here"
            if reason:
                raise ValueError(f"the engine cannot be updated from version {base}: {reason}; send full weights")

        def on_end() -> None:
            self._update = None

        self._update = self._weight_files.begin(version, base, self._apply_update, on_end)
        return self._update

    async def _apply_update(self, update: StagedUpdate, expected: str | None) -> None:
        path = await asyncio.to_thread(self._weight_files.write, update)
        async with self._gate_closed(), self._managing:
            try:
                info = await asyncio.to_thread(self._weight_files.update_info, update, path, expected)
                if not self._stopped:
                    await self._connection.pause()
                await self._connection.update(info, str(update.version))
            except BaseException as error:
                # vLLM may hold some of the new weights by now. It stays paused, so that nothing is sampled with them.
                self._dirty = f"the update to version {update.version} failed ({type(error).__name__}: {error})"
                self._weight_files.discard(path)
                with suppress(Exception):
                    await self._connection.abort()
                raise
            self._sent = {"weights/bytes": path.stat().st_size, "weights/whole": float(update.base is None)}
            self._weight_files.mark_loaded(path)
            self._version, self._loaded, self._dirty, self._salt = update.version, True, "", secrets.token_hex(8)
            if not self._stopped:
                await self._connection.resume()

    async def checksum(self) -> str:
        """Checksum of the weights last sent."""
        if not self._weight_files.known:
            raise RuntimeError(
                "no weights have been sent to the engine yet, and its initial weights are not known here"
            )
        return await asyncio.to_thread(self._weight_files.checksum)

    async def state(self) -> EngineState:
        self._check_open()
        held = await self._connection.state()
        version = held if held is not None else self._version or 0
        waiting = sum(not task.done() for task in self._tasks) - self._running
        return EngineState(version, self._running, waiting, self._gate is not None, self._dirty)

    async def abort(self) -> None:
        self._check_open()
        self._aborts += 1
        if self._gate is not None:  # wake requests that wait for the end of a pause
            self._gate.set()
            self._gate = asyncio.Event()
        await self._connection.abort()

    async def pause(self, mode: Pause) -> None:
        self._check_open()
        async with self._gate_closed():
            resumes = self._resumes
            while mode == "wait" and self._running:
                await asyncio.sleep(0.01)
                if self._resumes != resumes:
                    raise RuntimeError("the engine was resumed before all requests had finished")
            async with self._stopping():
                await self._connection.pause()
                if mode == "abort":
                    await self._connection.abort()
                if mode == "recompute":
                    await self._connection.forget()

    async def resume(self) -> None:
        self._check_open()
        async with self._managing:
            if not self._dirty:
                await self._connection.resume()
            self._open_gate()

    async def sleep(self) -> None:
        self._check_open()
        async with self._gate_closed(), self._stopping():
            await self._connection.sleep()

    async def wake(self) -> None:
        self._check_open()
        async with self._managing:
            await self._connection.wake()
            self._open_gate()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._connection.close()
        self._weight_files.close()

    async def _ready(self) -> ModelInfo:
        facts = await self._connection.ready()
        if not self._known:
            self._version, self._known = facts.version, True
            if facts.version is None:
                self._dirty = "an update of vLLM was started and never finished"
        return facts

    async def _wait_for_gate(self) -> bool:
        """Wait until nothing is paused; False if all requests were aborted meanwhile."""
        aborts = self._aborts
        while self._gate is not None and self._aborts == aborts:
            await self._gate.wait()
        return self._aborts == aborts

    @asynccontextmanager
    async def _gate_closed(self) -> AsyncIterator[None]:
        """Hold back new requests inside this context."""
        self._closing += 1
        self._set_gate()
        try:
            yield
        finally:
            self._closing -= 1
            self._set_gate()

    @asynccontextmanager
    async def _stopping(self) -> AsyncIterator[None]:
        """Leave vLLM paused after this context, unless it fails."""
        async with self._managing:
            try:
                yield
            except BaseException:
                if not self._stopped:
                    with suppress(Exception):
                        await self._connection.resume()
                raise
            self._stopped = True

    def _open_gate(self) -> None:
        self._stopped = False
        self._resumes += 1
        self._set_gate()

    def _set_gate(self) -> None:
        closed = self._stopped or self._closing
        if closed and self._gate is None:
            self._gate = asyncio.Event()
        elif not closed and self._gate is not None:
            self._gate.set()
            self._gate = None

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the engine is closed")
