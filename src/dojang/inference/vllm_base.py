"""A ServingEngine that has vLLM draw for it, wherever vLLM runs: base of vllm.py and remote.py.

Every sample is a request of its own, with a seed of its own. Requests that come during a pause are held back here, so
vLLM is never asked for anything while it stands still. Keys and values of prompts are shared between requests
(`salt`), but not across an update: what other weights have computed is not used for new requests.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from transformers import PreTrainedTokenizerBase

from dojang.engine.stop_criteria import Stopper
from dojang.engine.validate import check_clean, check_request
from dojang.engine.weight_update import StagedUpdate, bring
from dojang.inference.vllm_protocol import FIRST, Drawn, completed, parameters
from dojang.protocols import Abilities, EngineState, Pause, WeightStore
from dojang.types import Completion, Metrics, Sampling
from dojang.weight_sync.weight_files import Parcels

__all__ = ["Facts", "Line", "ServedEngine"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Facts:
    """What an engine must know of the model it has."""

    context: int
    vocabulary: int | None
    """None if it does not tell; it refuses tokens that it does not know."""
    version: int | None
    """None if an update was begun and not ended."""


class Line(Protocol):
    """A way to reach vLLM. What fails raises RuntimeError; what vLLM refuses, ValueError."""

    async def ready(self) -> Facts:
        """Answers when it can be asked; quickly from the second time on."""

    async def draw(self, prompt: Sequence[int], wanted: Mapping[str, Any], salt: Callable[[], str]) -> Drawn:
        """One sample. Cancelled, it ends in vLLM as well. The salt is asked for when vLLM is."""

    async def abort(self) -> None:
        """End all samples being drawn, and answer when they have been delivered."""

    async def pause(self) -> None:
        """Stop between two tokens, and keep all that is under way."""

    async def resume(self) -> None:
        """Go on."""

    async def forget(self) -> None:
        """Drop all keys and values; what is under way will compute them anew."""

    async def update(self, info: Mapping[str, Any], label: str) -> None:
        """Take over the weights in a file while paused."""

    async def sleep(self) -> None: ...

    async def wake(self) -> None: ...

    async def state(self) -> int | None:
        """The version of the weights, None within an update. Raises if vLLM cannot be reached."""

    async def close(self) -> None: ...


class ServedEngine:
    """All of an engine but the line to vLLM."""

    abilities: Abilities

    def __init__(
        self, line: Line, parcels: Parcels, tokenizer: PreTrainedTokenizerBase, weights: WeightStore | None
    ) -> None:
        self._line, self._parcels, self._weights = line, parcels, weights
        self._stopper = Stopper(tokenizer, frozenset((tokenizer.eos_token_id,)))
        self._version: int | None = None
        """None until vLLM has been asked, and within an update that somebody else has begun."""
        self._known = False
        """Whether it has been asked."""
        self._loaded = False
        """Whether its weights are others than those vLLM was started with."""
        self._salt = secrets.token_hex(8)
        self._asked: set[asyncio.Task[Completion]] = set()
        self._running = 0
        self._gate: asyncio.Event | None = None
        """What new requests wait for; None if they need not."""
        self._stopped = False
        """Whether vLLM stands still because it was asked to, not for an update only."""
        self._closing = 0
        """How many pauses and updates are under way."""
        self._resumes = 0
        self._managing = asyncio.Lock()
        """Pauses, updates and their ends come one after the other."""
        self._aborts = 0
        self._update: StagedUpdate | None = None
        self._dirty = ""
        self._sent: Metrics = {}
        """Of the last update."""
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
        self._asked.update(tasks)
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()  # those that are done do not mind
            self._asked.difference_update(tasks)

    async def _sample(
        self, facts: Facts, prompt: tuple[int, ...], index: int, sampling: Sampling, past: Completion | None
    ) -> Completion:
        if past and past.finish != "abort":
            return past
        done = past.tokens if past else ()
        left = min(sampling.max_tokens, facts.context - len(prompt)) - len(done)
        if past and left <= 0:
            return replace(past, finish="length")
        if not await self._may_go():
            return completed(past, Drawn((), (), "abort"), self._version or 0, sampling, self._stopper)
        check_clean(self._dirty)
        version, loaded = self._version or 0, self._loaded
        self._running += 1
        try:
            drawn = await self._line.draw(
                prompt + done, parameters(sampling, index, len(done), left), lambda: self._salt
            )
        finally:
            self._running -= 1
        if loaded and any(label == FIRST for label, _, _ in drawn.versions):
            self._dirty = "vLLM was restarted, and has the weights it was started with"
        check_clean(self._dirty)
        return completed(past, drawn, version, sampling, self._stopper)

    async def load(self, version: int) -> Metrics:
        self._check_open()
        weights = self._weights
        if weights is None:
            raise ValueError("the engine was given no weight store to load from")
        if not (self._parcels.deltas and self._parcels.known and await self._load_changes(weights, version)):
            await bring(await self.begin(version), lambda: weights.fetch(version))
        return self._sent

    async def _load_changes(self, weights: WeightStore, version: int) -> bool:
        """Whether all is well with only what has changed; if not, whole weights have to be sent."""
        base = self._version
        try:
            if (held := await self._line.state()) != base or base is None:
                raise ValueError(f"vLLM holds version {held}, not {base}")
            if (changes := weights.changes(base, version)) is None:
                raise ValueError(f"what has changed since version {base} is not known")
            await bring(
                await self.begin(version, base=base), lambda: changes.tensors, changes.patches, changes.checksum
            )
        except (RuntimeError, ValueError) as error:
            logger.warning("weights of version %d are sent whole: %s", version, error)
            return False
        return True

    async def begin(self, version: int, *, base: int | None = None) -> StagedUpdate:
        self._check_open()
        if not self.abilities.patches:
            raise NotImplementedError("this server cannot be sent weights")
        await self._ready()
        if self._update is not None:
            raise ValueError(f"an update to version {self._update.version} is under way")
        if base is not None:
            trouble = self._dirty or ("" if base == self._version else f"it holds version {self._version}")
            if not trouble and not self._parcels.known:
                trouble = "what it began with cannot be read from here"
            if trouble:
                raise ValueError(f"the engine cannot be updated from version {base}: {trouble}; send whole weights")

        def forget() -> None:
            self._update = None

        self._update = self._parcels.begin(version, base, self._take_over, forget)
        return self._update

    async def _take_over(self, update: StagedUpdate, expected: str | None) -> None:
        path = await asyncio.to_thread(self._parcels.write, update)
        async with self._gate_closed(), self._managing:
            try:
                told = await asyncio.to_thread(self._parcels.seal, update, path, expected)
                if not self._stopped:
                    await self._line.pause()
                await self._line.update(told, str(update.version))
            except BaseException as error:
                # vLLM may hold some of the new weights by now. It stays paused, so that nobody draws with them.
                self._dirty = f"the update to version {update.version} broke off ({type(error).__name__}: {error})"
                self._parcels.drop(path)
                with suppress(Exception):
                    await self._line.abort()
                raise
            self._sent = {"weights/bytes": path.stat().st_size, "weights/whole": float(update.base is None)}
            self._parcels.keep(path)
            self._version, self._loaded, self._dirty, self._salt = update.version, True, "", secrets.token_hex(8)
            if not self._stopped:
                await self._line.resume()

    async def checksum(self) -> str:
        """Of the weights that were last sent."""
        if not self._parcels.known:
            raise RuntimeError(
                "no weights have been sent to the engine yet, and those it began with are not known here"
            )
        return await asyncio.to_thread(self._parcels.checksum)

    async def state(self) -> EngineState:
        self._check_open()
        held = await self._line.state()
        version = held if held is not None else self._version or 0
        waiting = sum(not task.done() for task in self._asked) - self._running
        return EngineState(version, self._running, waiting, self._gate is not None, self._dirty)

    async def abort(self) -> None:
        self._check_open()
        self._aborts += 1
        if self._gate is not None:  # those who wait for the end of a pause look up
            self._gate.set()
            self._gate = asyncio.Event()
        await self._line.abort()

    async def pause(self, mode: Pause) -> None:
        self._check_open()
        async with self._gate_closed():
            resumes = self._resumes
            while mode == "wait" and self._running:
                await asyncio.sleep(0.01)
                if self._resumes != resumes:
                    raise RuntimeError("the engine was resumed before all had ended")
            async with self._stopping():
                await self._line.pause()
                if mode == "abort":
                    await self._line.abort()
                if mode == "recompute":
                    await self._line.forget()

    async def resume(self) -> None:
        self._check_open()
        async with self._managing:
            if not self._dirty:
                await self._line.resume()
            self._go_on()

    async def sleep(self) -> None:
        self._check_open()
        async with self._gate_closed(), self._stopping():
            await self._line.sleep()

    async def wake(self) -> None:
        self._check_open()
        async with self._managing:
            await self._line.wake()
            self._go_on()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for task in self._asked:
            task.cancel()
        await asyncio.gather(*self._asked, return_exceptions=True)
        await self._line.close()
        self._parcels.close()

    async def _ready(self) -> Facts:
        facts = await self._line.ready()
        if not self._known:
            self._version, self._known = facts.version, True
            if facts.version is None:
                self._dirty = "an update of vLLM was begun by somebody, and not ended"
        return facts

    async def _may_go(self) -> bool:
        """Once nothing is paused; False if all requests were aborted before."""
        aborts = self._aborts
        while self._gate is not None and self._aborts == aborts:
            await self._gate.wait()
        return self._aborts == aborts

    @asynccontextmanager
    async def _gate_closed(self) -> AsyncIterator[None]:
        """New requests wait meanwhile."""
        self._closing += 1
        self._set_gate()
        try:
            yield
        finally:
            self._closing -= 1
            self._set_gate()

    @asynccontextmanager
    async def _stopping(self) -> AsyncIterator[None]:
        """vLLM stands still from here on, unless this fails."""
        async with self._managing:
            try:
                yield
            except BaseException:
                if not self._stopped:
                    with suppress(Exception):
                        await self._line.resume()
                raise
            self._stopped = True

    def _go_on(self) -> None:
        self._stopped = False
        self._resumes += 1
        self._set_gate()

    def _set_gate(self) -> None:
        shut = self._stopped or self._closing
        if shut and self._gate is None:
            self._gate = asyncio.Event()
        elif not shut and self._gate is not None:
            self._gate.set()
            self._gate = None

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the engine is closed")
