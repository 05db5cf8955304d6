"""Continuous batching: prefill, decode and preemption of all sequences of an engine.

Every `step` has two phases:

    prefill   Compute keys, values and logits for a chunk of the waiting prompts (chunked prefill: a long prompt delays
              decoding by at most one chunk). Samples of one prompt share its prefix. Sequences with a prefilled prefix
              enter free slots of the KV cache.
    decode    Sample one token (on a GPU: several) for every running sequence. Finished sequences leave their slot.

Preemption: when memory runs out, half of the running sequences go back to the waiting queue and are prefilled again
later, from all tokens they have; from then on at most that many run together.

The scheduler knows no threads and no clock; `torch_engine.py` does. Call it in torch's inference mode.
"""

from collections import abc, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from dojang.core.out_of_memory import is_out_of_memory
from dojang.engine.attention import PrefillChunk
from dojang.engine.backend import make_backend
from dojang.engine.config import default_prefill_chunk
from dojang.engine.decode import SampledTokens, StepInputs, sample
from dojang.engine.decoder import Decoder
from dojang.engine.kv_cache import Budget, KvCache, Prefix
from dojang.engine.prefix_cache import PrefixCache
from dojang.engine.sequence import Request, Sequence
from dojang.engine.stop_criteria import StopCriteria
from dojang.types import Completion, Finish

__all__ = ["Scheduler"]


@dataclass(eq=False)
class _InFlight:
    """Decode steps that have started and whose tokens have not been collected."""

    sequences: list[Sequence]
    """The running sequences when the steps started; some may have finished since."""
    left: list[int]
    """Tokens that each sequence could still take before these steps."""
    steps: int
    result: Callable[[], SampledTokens]


_NO_PREFIX = Prefix(())
_PREFILL_AHEAD = 8
"""Prefill ahead for one in this many slots, before the slot is free."""
_MIN_CHUNK = 16
_MOVE_GAIN = 32
"""Copy a sequence to another slot only if that evens out lengths by this many tokens."""


class Scheduler:
    """Waiting and running sequences of one engine."""

    def __init__(
        self,
        decoder: Decoder,
        stop_criteria: StopCriteria,
        *,
        max_num_seqs: int,
        budget: Budget,
        prefill_chunk_tokens: int | None,
        prefix_cache: int = 0,
        context: int | None = None,
    ) -> None:
        """`budget` of the KV cache, and bytes of `prefix_cache`, which come on top."""
        self._decoder = decoder
        self._stop_criteria = stop_criteria
        self._chunk = prefill_chunk_tokens or default_prefill_chunk(gpu=decoder.fused)
        self.context = min(context or decoder.shape.context, decoder.shape.context)
        self.version = 0
        self._cache = KvCache(
            decoder.shape, decoder.dtype, decoder.device, max_slots=max_num_seqs, budget=budget, indirect=decoder.fused
        )
        self._max_running = max_num_seqs
        """Most sequences decoded together; lowered after an out-of-memory error."""
        self._runner, self._prefill_attention, self._write_prefixes = make_backend(decoder, self._cache, max_num_seqs)
        self._prefixes: WeakValueDictionary[tuple[str, tuple[int, ...]], Prefix] = WeakValueDictionary()
        """Prefixes of waiting sequences, for other requests with the same conversation and tokens to share."""
        self._prefix_cache = PrefixCache(prefix_cache)
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        """Sequences being decoded; the index of each is its slot."""
        self._in_flight: _InFlight | None = None
        """Set only between two steps. Call `_sync` before any change other than adding or dropping requests."""

    @property
    def busy(self) -> bool:
        return bool(self._running or self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def check(self, length: int) -> None:
        """Raise ModelError if a sequence of `length` tokens (at most the context) never fits into the KV cache."""
        self._cache.check(min(length, self.context))

    def add(self, request: Request) -> None:
        """Queue the samples of a request."""
        max_tokens = min(request.sampling.max_tokens, self.context - len(request.prompt))
        prefix = self._prefix(request, request.prompt)
        self._waiting.extend(Sequence.of(request, index, prefix, max_tokens) for index in range(request.n))
        if not request.n:
            request.deliver(request)

    def drop(self, requests: Collection[Request]) -> None:
        """Remove cancelled requests without delivering them."""
        self._waiting = deque(seq for seq in self._waiting if seq.request not in requests)
        for slot in sorted((at for at, seq in enumerate(self._running) if seq.request in requests), reverse=True):
            self._free_slot(slot)
        self._release_if_idle()

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """Weights by their checkpoint names. Change them only inside `updating_weights`."""
        return self._decoder.weights

    @contextmanager
    def updating_weights(self, version: int) -> Iterator[None]:
        """Change the weights. Running sequences continue with the keys and values they have."""
        self._sync()
        yield
        self._decoder.refresh()
        self.version = version
        self._clear_prefixes()

    def _clear_prefixes(self) -> None:
        """Drop all prefilled results, also of finished requests: their prefixes may still be referenced."""
        for prefix in list(self._prefixes.values()):
            prefix.clear()
        self._prefix_cache.clear()

    def _preempt(self, kept: int) -> None:
        """Move all running sequences but the first `kept` back to the waiting queue, to be prefilled again."""
        while len(self._running) > kept:
            seq = self._running.pop()
            tokens = seq.request.prompt + tuple(seq.tokens)
            seq.prefix = self._prefix(seq.request, tokens)
            self._waiting.appendleft(seq)

    def _prefix(self, request: Request, tokens: tuple[int, ...]) -> Prefix:
        """Prefix of these tokens. Waiting sequences with the same tokens share it, such as the first turns of a group;
        one that continues an earlier turn of its conversation only with others of that conversation."""
        earlier = self._prefix_cache.find(request.sampling.conversation, tokens)
        conversation = "" if earlier is None else earlier.conversation
        return self._prefixes.setdefault((conversation, tokens), Prefix(tokens, conversation))

    def step(self) -> None:
        """Prefill a chunk and decode for all running sequences; on out of memory, preempt half of them."""
        if self._waiting or not self._running:
            self._sync()
        if self._in_flight is None:
            self._fill_slots()
        if not self._running:
            return self._release_if_idle()
        try:
            current = self._in_flight or self._decode()
            # While no sequence waits for a slot, start the next steps before collecting these: the GPU never idles.
            self._in_flight = None
            if not self._waiting and self._runner.can_continue([seq.request.sampling for seq in current.sequences]):
                self._in_flight = self._decode_ahead(current)
            self._prefill()  # the GPU decodes meanwhile
            self._collect(current)
            if not self._running:
                self._sync()  # the steps decoded ahead belong to finished sequences
            self._release_if_idle()
        except BaseException as error:
            self._in_flight = None  # decoding continues from the last collected tokens
            if not is_out_of_memory(error) or len(self._running) <= 1:
                raise
            self._prefix_cache.clear()
            self._max_running = len(self._running) // 2
            self._preempt(self._max_running)

    def _release_if_idle(self) -> None:
        """Free the KV cache for the trainer when idle. Not on a GPU: CUDA graphs hold its addresses."""
        if not self.busy and not self._decoder.fused:
            self._cache.release()

    def _fill_slots(self) -> None:
        idle = not self._running
        while idle and self._prefill():  # no sequence is delayed by it, so fill all slots before decoding
            self._admit()
        self._admit()

    def _sync(self) -> None:
        """Collect the tokens of the steps in flight."""
        current, self._in_flight = self._in_flight, None
        if current is not None:
            self._collect(current)

    # Prefill ----------------------------------------------------------------------------------------------------------

    def _prefill(self) -> bool:
        """Prefill a chunk of the next prompts; False if nothing was left to prefill. Halves the chunk on out of
        memory."""
        try:
            return self._prefill_chunk()
        except RuntimeError as error:
            if not is_out_of_memory(error) or self._chunk <= _MIN_CHUNK:
                raise
            self._prefix_cache.clear()
            self._chunk //= 2
            return True

    def _prefill_chunk(self) -> bool:
        chunks, left = [], self._chunk
        for prefix in self._next_prefixes():
            if left <= 0:
                break
            if not prefix.num_computed_tokens:
                self._prefix_cache.fill(prefix)
            start, size = prefix.num_computed_tokens, len(prefix.tokens)
            if start == size:
                continue
            chunks.append(PrefillChunk(prefix, start, min(size, start + left)))
            left -= chunks[-1].end - start
        if chunks:
            self._run_prefill(sorted(chunks, key=lambda chunk: chunk.start == 0))
        return bool(chunks)

    def _next_prefixes(self) -> list[Prefix]:
        """Prefixes of the sequences that can enter now and of a few that can enter soon, in order."""
        capacity = min(self._max_running, self._cache.capacity)
        soon = capacity - len(self._running) + max(1, capacity // _PREFILL_AHEAD)
        sequences = [seq for _, seq in zip(range(soon), self._waiting, strict=False)]
        return list(dict.fromkeys(seq.prefix for seq in sequences))

    def _run_prefill(self, chunks: abc.Sequence[PrefillChunk]) -> None:
        device = self._decoder.device
        tokens = [token for chunk in chunks for token in chunk.prefix.tokens[chunk.start : chunk.end]]
        positions = [position for chunk in chunks for position in range(chunk.start, chunk.end)]
        ends = np.cumsum([chunk.end - chunk.start for chunk in chunks]) - 1
        complete = [at for at, chunk in enumerate(chunks) if chunk.end == len(chunk.prefix.tokens)]
        x_BE = self._decoder.forward(
            torch.tensor(tokens, device=device),
            torch.tensor(positions, device=device),
            self._prefill_attention(chunks, self._decoder),
            torch.tensor(ends[complete], device=device),
        )
        for chunk in chunks:
            chunk.prefix.num_computed_tokens = chunk.end
        if complete:
            for at, logits_V in zip(complete, self._decoder.logits(x_BE), strict=True):
                chunks[at].prefix.logits_V = logits_V

    def _admit(self) -> None:
        """Move prefilled sequences into free slots and sample their first token."""
        first, entering = len(self._running), list[Sequence]()
        while self._waiting and (seq := self._waiting[0]).prefix.logits_V is not None:
            length = min(seq.max_length, self.context)
            if len(self._running) >= self._max_running or not self._cache.reserve(length, len(self._running)):
                break
            self._running.append(self._waiting.popleft())
            entering.append(seq)
        if not entering:
            return
        try:
            sampled = self._sample_first(entering, first)
        except RuntimeError as error:
            if not is_out_of_memory(error) or len(self._running) == 1:
                raise
            self._max_running = len(self._running) // 2
            self._preempt(min(first, self._max_running))
            return
        for seq in entering:
            seq.prefix = _NO_PREFIX  # frees the prefix with its last waiting sequence
        self._append(entering, sampled, range(first, first + len(entering)))

    def _sample_first(self, entering: abc.Sequence[Sequence], first: int) -> SampledTokens:
        """Write the sequences' prefixes into the slots from `first` on, and sample their first tokens."""
        slots: dict[Prefix, list[int]] = {}
        for slot, seq in enumerate(entering, first):
            slots.setdefault(seq.prefix, []).append(slot)
        self._write_prefixes(self._cache, slots)
        logits_BV = torch.stack([seq.prefix.logits_V for seq in entering if seq.prefix.logits_V is not None])
        return sample(logits_BV, self._step_inputs(entering, 1))

    # Decode -----------------------------------------------------------------------------------------------------------

    def _decode(self) -> _InFlight:
        """Start the next decode steps of all running sequences."""
        running = list(self._running)
        left = [min(seq.max_length, self.context) - seq.length for seq in running]
        steps = self._runner.num_steps([seq.request.sampling for seq in running], left)
        tokens, positions = [seq.tokens[-1] for seq in running], [seq.length - 1 for seq in running]
        result = self._runner.decode(tokens, positions, self._step_inputs(running, steps))
        return _InFlight(running, left, steps, result)

    def _decode_ahead(self, current: _InFlight) -> _InFlight | None:
        """Start the steps after `current` for all sequences that may continue."""
        running = set(self._running)
        kept = [at for at, seq in enumerate(current.sequences) if seq in running and current.left[at] > current.steps]
        if not kept:
            return None
        sequences = [current.sequences[at] for at in kept]
        left = [current.left[at] - current.steps for at in kept]
        steps = self._runner.num_steps([seq.request.sampling for seq in sequences], left)
        inputs = self._step_inputs(sequences, steps, current.steps)
        return _InFlight(sequences, left, steps, self._runner.continue_decoding(kept, inputs))

    def _collect(self, current: _InFlight) -> None:
        slots = {seq: slot for slot, seq in enumerate(self._running)}
        self._append(current.sequences, current.result(), [slots.get(seq, -1) for seq in current.sequences])

    def _step_inputs(self, sequences: abc.Sequence[Sequence], steps: int, start: int = 0) -> StepInputs:
        """Sampling parameters and random numbers of `steps` steps, beginning `start` steps from now."""
        uniform_NR = np.zeros((len(sequences), steps))
        for numbers_R, seq in zip(uniform_NR, sequences, strict=True):
            given = seq.next_uniforms(start, steps)
            numbers_R[: len(given)] = given
        return StepInputs([seq.request.sampling for seq in sequences], np.ascontiguousarray(uniform_NR.T))

    def _append(self, sequences: abc.Sequence[Sequence], sampled: SampledTokens, slots: Iterable[int]) -> None:
        """Append sampled tokens to sequences up to their stop; slot -1 marks a sequence that finished earlier."""
        sampled_N = (each.T.tolist() for each in (sampled.token_RN, sampled.logp_RN, sampled.plain_RN))
        updates = [each for each in zip(sequences, slots, *sampled_N, strict=True) if each[1] >= 0]
        stops = [
            self._stop_criteria.check(
                seq.tokens, tokens, min(seq.max_length, self.context) - seq.length, seq.request.sampling
            )
            for seq, _, tokens, _, _ in updates
        ]
        finished = dict[int, Finish]()
        for (seq, slot, tokens, logps, plains), (count, finish) in zip(updates, stops, strict=True):
            seq.tokens += tokens[:count]
            seq.logprobs += logps[:count]
            seq.plain_logprobs += plains[:count]
            seq.note_version(self.version, count)
            if finish:
                finished[slot] = finish
        self._finish_slots(finished)

    def _finish_slots(self, finished: Mapping[int, Finish]) -> None:
        """Finish the sequences in these slots, last slot first: later sequences move into freed slots."""
        for slot in sorted(finished, reverse=True):
            seq = self._running[slot]
            if self._prefix_cache.enabled:
                self._keep(slot, seq)
            self._free_slot(slot)
            self._finish(seq, finished[slot])

    def _keep(self, slot: int, seq: Sequence) -> None:
        """Keep the keys and values of a finished sequence for the next turn of its conversation, without those of its
        last token, which were never needed; unless older weights computed some."""
        if not seq.request.sampling.conversation or [span.version for span in seq.spans] != [self.version]:
            return
        tokens = (seq.request.prompt + tuple(seq.tokens))[:-1]
        try:
            self._prefix_cache.put(seq.request.sampling.conversation, tokens, *self._cache.read(slot, len(tokens)))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            self._prefix_cache.clear()  # a completion that is ready does not wait for memory

    def _finish(self, seq: Sequence, finish: Finish) -> None:
        request = seq.request
        request.finished[seq.index] = Completion(
            tokens=tuple(seq.tokens),
            logprobs=tuple(seq.logprobs),
            text=self._stop_criteria.text(seq.tokens, request.sampling),
            finish=finish,
            version=seq.spans[0].version if seq.spans else self.version,
            plain_logprobs=tuple(seq.plain_logprobs),
            spans=tuple(seq.spans),
        )
        if len(request.finished) == request.n:
            request.deliver(request)

    def _free_slot(self, slot: int) -> None:
        """Free a slot and close the gap. Each group of slots behind it passes its longest sequence forward while that
        one is much longer than the last sequence; otherwise the last sequence moves into the gap."""
        running, group = self._running, self._cache.slots_per_call
        while (start := (slot // group + 1) * group) < len(running):
            longest = max(range(start, min(start + group, len(running))), key=lambda at: running[at].length)
            if running[longest].length < running[-1].length + _MOVE_GAIN:
                break
            self._move(longest, slot)
            slot = longest
        if slot < len(running) - 1:
            self._move(len(running) - 1, slot)
        running.pop()

    def _move(self, source: int, target: int) -> None:
        self._cache.move(source, target, self._running[source].length)
        self._running[target] = self._running[source]
