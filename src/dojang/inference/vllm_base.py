"""Base of the vLLM engines: requests and weight updates, over any connection to vLLM (vllm.py, remote.py).

Every sample is one vLLM request with its own seed. vLLM is paused during an update; requests that arrive meanwhile wait
here. Requests share prefix-cached keys and values (`salt`), but not across a weight update: keys and values of older
weights are not used for new requests.
"""

import asyncio
import itertools
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from transformers import PreTrainedTokenizerBase

from dojang.engine.stop_criteria import StopCriteria
from dojang.engine.validate import check_clean, check_request
from dojang.engine.weight_update import StagedUpdate, load_weights
from dojang.inference.vllm_protocol import INITIAL, VllmOutput, completed, parameters
from dojang.protocols import EngineState, WeightStore
from dojang.types import Completion, Metrics, Sampling, StopLine
from dojang.weight_sync.weight_files import WeightFiles

__all__ = ["ModelInfo", "VllmBaseEngine", "VllmConnection"]


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

    async def update(self, info: Mapping[str, Any], label: str) -> None:
        """Load the weights of a file while paused."""

    async def state(self) -> int | None:
        """Return the version of the weights, None during an update. Raises if vLLM cannot be reached."""

    async def close(self) -> None: ...


class VllmBaseEngine:
    """A ServingEngine over a connection to vLLM."""

    accepts_weights = True
    """Whether its weights can be updated."""

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
        self._updated: asyncio.Event | None = None
        """Set at the end of the update that vLLM is paused for; None outside of one. New requests wait for it."""
        self._update: StagedUpdate | None = None
        self._dirty = ""
        self._sent: Metrics = {}
        """Metrics of the last update."""
        self._closed = False

    async def generate(self, prompt: Sequence[int], n: int, sampling: Sampling) -> list[Completion]:
        self._check_open()
        facts = await self._ready()
        check_clean(self._dirty)
        check_request(prompt, sampling, facts.context, facts.vocabulary)
        tasks = [asyncio.create_task(self._sample(facts, tuple(prompt), index, sampling)) for index in range(n)]
        self._tasks.update(tasks)
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()  # no effect on finished tasks
            self._tasks.difference_update(tasks)

    async def _sample(self, facts: ModelInfo, prompt: tuple[int, ...], index: int, sampling: Sampling) -> Completion:
        limit = min(sampling.max_tokens, facts.context - len(prompt))
        if sampling.stop_line is None:
            output, version = await self._request(prompt, parameters(sampling, index, limit))
        else:
            output, version = await self._sample_to_line(prompt, index, sampling, sampling.stop_line, limit)
        return completed(output, version, sampling, self._stop_criteria)

    async def _sample_to_line(
        self, prompt: tuple[int, ...], index: int, sampling: Sampling, line: StopLine, limit: int
    ) -> tuple[VllmOutput, int]:
        """Sample up to the stop line. vLLM knows stop strings only, so it hands the sample back at each string that may
        complete the line, and continues it in another request, with the keys and values of the first."""
        whole, versions = VllmOutput((), (), "stop"), list[int]()
        for part in itertools.count():
            written, left = whole.tokens, limit - len(whole.tokens)
            awaited = line.awaited(self._stop_criteria.decode(written))
            output, version = await self._request(prompt + written, parameters(sampling, index, left, awaited, part))
            versions.append(version)
            count, finish = self._stop_criteria.check(written, output.tokens, left, sampling)
            if finish == "stop":  # vLLM may have sampled several tokens in its last step
                return whole.followed_by(output.cut(count, "stop")), versions[0]
            if output.finish != "stop" or self._stop_criteria.find_stop((), output.tokens, awaited) is None:
                break
            if finish == "length":
                output = output.cut(count, "length")
                break
            whole = whole.followed_by(output)
        return whole.followed_by(output), versions[0]

    async def _request(self, prompt: tuple[int, ...], wanted: Mapping[str, Any]) -> tuple[VllmOutput, int]:
        """Send one request to vLLM; return its output and the version of the weights when it was sent."""
        while self._updated is not None:
            await self._updated.wait()
        check_clean(self._dirty)
        version, loaded = self._version or 0, self._loaded
        self._running += 1
        try:
            output = await self._connection.generate(prompt, wanted, lambda: self._salt)
        finally:
            self._running -= 1
        if loaded and any(label == INITIAL for label, _, _ in output.versions):
            self._dirty = "vLLM was restarted and holds its initial weights"
        check_clean(self._dirty)
        return output, version

    async def load(self, version: int) -> Metrics:
        self._check_open()
        weights = self._weights
        if weights is None:
            raise ValueError("the engine has no weight store to load from")
        deltas = self._weight_files.deltas and self._weight_files.known
        await load_weights(self._begin_at, weights, version, base=self._version if deltas else None)
        return self._sent

    async def _begin_at(self, version: int, *, base: int | None = None) -> StagedUpdate:
        """Begin an update, if vLLM itself says that it holds the base."""
        if base is not None and (held := await self._connection.state()) != base:
            raise ValueError(f"vLLM holds version {held}, not {base}")
        return await self.begin(version, base=base)

    async def begin(self, version: int, *, base: int | None = None) -> StagedUpdate:
        self._check_open()
        if not self.accepts_weights:
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
        with self._hold_requests():
            try:
                info = await asyncio.to_thread(self._weight_files.update_info, update, path, expected)
                started = time.monotonic()
                await self._connection.pause()
                await self._connection.update(info, str(update.version))
            except BaseException as error:
                # vLLM may hold some of the new weights by now. It stays paused, so that nothing is sampled with them.
                self._dirty = f"the update to version {update.version} failed ({type(error).__name__}: {error})"
                self._weight_files.discard(path)
                with suppress(Exception):
                    await self._connection.abort()
                raise
            sent = {"weights/bytes": path.stat().st_size, "weights/whole": float(update.base is None)}
            self._weight_files.mark_loaded(path)
            self._version, self._loaded, self._dirty, self._salt = update.version, True, "", secrets.token_hex(8)
            await self._connection.resume()
            self._sent = {**sent, "timing_s/load_pause": time.monotonic() - started}

    @contextmanager
    def _hold_requests(self) -> Iterator[None]:
        """Let new requests wait until the end of this context."""
        updated = self._updated = asyncio.Event()
        try:
            yield
        finally:
            self._updated = None
            updated.set()

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
        return EngineState(version, self._running, waiting, self._dirty)

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

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the engine is closed")
