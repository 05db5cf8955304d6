"""Continuous batching: prefill, decode and preemption of all sequences of an engine.

Every `step` has two phases:

    prefill   Compute keys, values and logits for a chunk of the waiting prompts (chunked prefill: a long prompt delays
              decoding by at most one chunk). Samples of one prompt share its prefix. Sequences with a prefilled prefix
              begin to run.
    decode    Sample one token (on a GPU: several) for every running sequence.

Preemption: when no page of the KV cache is left, the shortest running sequence goes back to the waiting queue and is
prefilled again later, from all tokens it has. When memory runs out half of them do; from then on at most that many run
together.

The scheduler knows no threads and no clock; `torch_engine.py` does. Call it in torch's inference mode.
"""

from collections import abc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from dojang.core.out_of_memory import is_out_of_memory
from dojang.engine.attention import PrefillChunk
from dojang.engine.backend import make_backend
from dojang.engine.config import default_prefill_chunk
from dojang.engine.cpu_ops import compiled_attention_for
from dojang.engine.decode import SampledTokens, StepInputs, sample
from dojang.engine.decoder import Decoder
from dojang.engine.kv_cache import Budget, KvCache, Prefix
from dojang.engine.kv_cache_size import pages_for
from dojang.engine.ngram_drafts import make_drafts
from dojang.engine.prefix_cache import PrefixCache
from dojang.engine.sequence import Request, Sequence
from dojang.engine.stop_criteria import StopCriteria
from dojang.engine.waiting import WaitingQueue
from dojang.types import Finish

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


_PREFILL_AHEAD = 8
"""Prefill ahead for one in this many sequences that may run, before one finishes."""
_MIN_CHUNK = 16


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
        speculative_tokens: int = 0,
    ) -> None:
        """`budget` of the KV cache, and bytes of `prefix_cache`, which come on top."""
        self._decoder, self._stop_criteria = decoder, stop_criteria
        self._chunk = prefill_chunk_tokens or default_prefill_chunk(gpu=decoder.fused)
        self.context = min(context or decoder.shape.context, decoder.shape.context)
        self.version = 0
        self._cache = cache = KvCache(
            decoder.shape,
            decoder.dtype,
            decoder.device,
            max_num_seqs=max_num_seqs,
            budget=budget,
            prefix_cache=prefix_cache,
            zeroed=not decoder.fused and compiled_attention_for(decoder.weights["model.norm.weight"]) is None,
        )
        self._max_running = max_num_seqs
        """Most sequences decoded together; lowered after an out-of-memory error."""
        self._runner, self._prefill_attention = make_backend(decoder, cache, max_num_seqs)
        self._prefix_cache = PrefixCache(prefix_cache // cache.page_bytes, cache.drop)
        cache.on_pressure = self._prefix_cache.evict_oldest
        self._drafts = make_drafts(speculative_tokens, decoder.cheap_rows)
        self.preempted = 0
        """Sequences that were preempted so far."""
        self._waiting = WaitingQueue(cache, self._prefix_cache)
        self._running: list[Sequence] = []
        """Sequences being decoded; the index of each is its row of the page table."""
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
        self._waiting.append(request, max_tokens)
        if not request.n:
            request.deliver(request)

    def drop(self, requests: Collection[Request]) -> None:
        """Remove cancelled requests without delivering them."""
        self._waiting.drop(requests)
        for row in sorted((at for at, seq in enumerate(self._running) if seq.request in requests), reverse=True):
            self._cache.drop(self._remove(row))
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
        self._waiting.clear_prefixes()
        self._prefix_cache.clear()
        self._release_if_idle()

    def _preempt(self, row: int) -> None:
        """Move a running sequence back to the waiting queue, to be prefilled again."""
        seq = self._running[row]
        self._waiting.push_front(seq, self._remove(row))
        self.preempted += 1

    def _keep_running(self, count: int) -> None:
        """Preempt all but the first `count` sequences."""
        while len(self._running) > count:
            self._preempt(len(self._running) - 1)

    def _remove(self, row: int) -> list[int]:
        """Take a sequence out of the running ones; the last one takes its row. Returns its pages."""
        self._running[row] = self._running[-1]
        self._running.pop()
        return self._cache.leave(row)

    def _limit(self, seq: Sequence) -> int:
        """Most tokens of a sequence, with its prompt."""
        return min(seq.max_length, self.context)

    def step(self) -> None:
        """Prefill a chunk and decode for all running sequences; on out of memory, preempt half of them."""
        if self._waiting or not self._running:
            self._sync()
        progress = self._in_flight is not None or self._fill()
        if not self._running:
            if not progress and self._waiting:
                self._raise_too_long(self._waiting.longest(self.context))
            return self._release_if_idle()
        try:
            current = self._in_flight or self._decode()
            # While no sequence waits to run, start the next steps before collecting these: the GPU never idles.
            self._in_flight = None
            if not self._waiting and self._can_decode_ahead(current):
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
            self._max_running = len(self._running) // 2
            self._keep_running(self._max_running)

    def _release_if_idle(self) -> None:
        """Free the KV cache for the trainer when idle, unless it keeps turns. Not on a GPU: CUDA graphs hold its
        addresses."""
        if not self.busy and not len(self._prefix_cache) and not self._decoder.fused:
            self._cache.release()

    def _fill(self) -> bool:
        """Prefill and begin to run what fits; False if nothing was done."""
        if self._waiting and not self._cache.allocated:
            self._cache.reserve(self._waiting.longest(self.context))
        idle, progress = not self._running, False
        while idle and self._prefill():  # no sequence is delayed by it, so start all that may run before decoding
            progress = True
            self._admit()
        return self._admit() or progress

    def _raise_too_long(self, length: int) -> NoReturn:
        """Raise the error of a sequence that does not fit even alone: the KV cache is smaller than its budget."""
        self._cache.check(length)
        raise AssertionError(f"{length} tokens fit, but their pages are not free")

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
            self._chunk //= 2
            return True

    def _prefill_chunk(self) -> bool:
        chunks, left = [], self._chunk
        for prefix in self._next_prefixes():
            if left <= 0:
                break
            if not prefix.pages:
                self._prefix_cache.fill(prefix)
            start, size = prefix.num_computed_tokens, len(prefix.tokens)
            if start == size:
                continue
            if not self._waiting.reserve(prefix, len(self._running)):
                break
            end = min(size, start + left)
            chunks.append(PrefillChunk(prefix, start, end))
            left -= end - start
        if chunks:
            self._run_prefill(sorted(chunks, key=lambda chunk: chunk.start == 0))
        return bool(chunks)

    def _next_prefixes(self) -> list[Prefix]:
        """Prefixes of the sequences that can run now and of a few that can run soon, in order."""
        soon = self._max_running - len(self._running) + max(1, self._max_running // _PREFILL_AHEAD)
        return self._waiting.prefixes(soon)

    def _run_prefill(self, chunks: abc.Sequence[PrefillChunk]) -> None:
        device = self._decoder.device
        tokens = [token for chunk in chunks for token in chunk.prefix.tokens[chunk.start : chunk.end]]
        positions = [position for chunk in chunks for position in range(chunk.start, chunk.end)]
        ends = np.cumsum([chunk.end - chunk.start for chunk in chunks]) - 1
        complete = [at for at, chunk in enumerate(chunks) if chunk.end == len(chunk.prefix.tokens)]
        x_BE = self._decoder.forward(
            torch.tensor(tokens, device=device),
            torch.tensor(positions, device=device),
            self._prefill_attention(chunks, self._cache, self._decoder),
            torch.tensor(ends[complete], device=device),
        )
        for chunk in chunks:
            chunk.prefix.num_computed_tokens = chunk.end
        if complete:
            for at, logits_V in zip(complete, self._decoder.logits(x_BE), strict=True):
                chunks[at].prefix.logits_V = logits_V

    def _admit(self) -> bool:
        """Let prefilled sequences run and sample their first token; False if none can."""
        first, entering, logits = len(self._running), list[Sequence](), list[Tensor]()
        while len(self._running) < self._max_running:
            if (started := self._waiting.start_next(len(self._running))) is None:
                break
            seq, pages, logits_V = started
            self._cache.enter(pages)
            self._running.append(seq)
            if self._drafts:
                self._drafts.learn(seq)
            entering.append(seq)
            logits.append(logits_V)
        if not entering:
            return False
        try:
            self._waiting.copy()
            sampled = sample(torch.stack(logits), self._step_inputs(entering, 1))
        except RuntimeError as error:
            if not is_out_of_memory(error) or len(self._running) == 1:
                raise
            self._max_running = len(self._running) // 2
            self._keep_running(min(first, self._max_running))
            return True
        self._append(entering, sampled, range(first, first + len(entering)))
        return True

    # Decode -----------------------------------------------------------------------------------------------------------

    def _decode(self) -> _InFlight:
        """Start the next decode steps of all running sequences."""
        while True:
            running = list(self._running)
            lengths = [seq.length for seq in running]
            left = [self._limit(seq) - length for seq, length in zip(running, lengths, strict=True)]
            drafts = self._drafts.draft(running, left) if self._drafts else []
            if any(drafts):
                stored = [length + len(draft) for length, draft in zip(lengths, drafts, strict=True)]
                if self._cache.extend(range(len(running)), stored):
                    steps = 1 + max(map(len, drafts))
                    break
                drafts = []
            steps = self._runner.num_steps([seq.request.sampling for seq in running], left)
            if self._cache.extend(range(len(running)), _stored(lengths, left, steps)):
                break
            if len(running) > 1 and not self._waiting.evict_last():
                self._preempt(min(range(len(running)), key=lambda row: (lengths[row], -row)))
            elif len(running) == 1 and not self._waiting.evict_last(shared=True):
                self._raise_too_long(self._limit(running[0]))
        tokens, positions = [seq.tokens[-1] for seq in running], [length - 1 for length in lengths]
        result = self._runner.decode(tokens, positions, self._step_inputs(running, steps).drafted(drafts))
        return _InFlight(running, left, steps, result)

    def _can_decode_ahead(self, current: _InFlight) -> bool:
        """Whether the next steps may start before the tokens of these are known: draft tokens follow known ones."""
        speculates = self._drafts is not None and self._drafts.has_room(len(self._running))
        return not speculates and self._runner.can_continue([seq.request.sampling for seq in current.sequences])

    def _decode_ahead(self, current: _InFlight) -> _InFlight | None:
        """Start the steps after `current` for all sequences that may continue, unless pages are short."""
        row_of = {seq: row for row, seq in enumerate(self._running)}
        kept = [at for at, seq in enumerate(current.sequences) if seq in row_of and current.left[at] > current.steps]
        sequences = [current.sequences[at] for at in kept]
        rows, lengths = [row_of[seq] for seq in sequences], [seq.length + current.steps for seq in sequences]
        left = [current.left[at] - current.steps for at in kept]
        steps = self._runner.num_steps([seq.request.sampling for seq in sequences], left) if kept else 0
        if not kept or not self._cache.extend(rows, _stored(lengths, left, steps)):
            return None
        inputs = self._step_inputs(sequences, steps, current.steps)
        return _InFlight(sequences, left, steps, self._runner.continue_decoding(kept, rows, inputs))

    def _collect(self, current: _InFlight) -> None:
        rows = {seq: row for row, seq in enumerate(self._running)}
        self._append(current.sequences, current.result(), [rows.get(seq, -1) for seq in current.sequences])

    def _step_inputs(self, sequences: abc.Sequence[Sequence], steps: int, start: int = 0) -> StepInputs:
        """Sampling parameters and random numbers of `steps` steps, beginning `start` steps from now."""
        uniform_RN = np.stack([seq.next_uniforms(start, steps) for seq in sequences], 1)
        return StepInputs([seq.request.sampling for seq in sequences], uniform_RN)

    def _append(self, sequences: abc.Sequence[Sequence], sampled: SampledTokens, rows: Iterable[int]) -> None:
        """Append sampled tokens to sequences up to their stop; row -1 marks a sequence that finished earlier."""
        updates = [each for each in zip(sequences, rows, *sampled.by_sequence(), strict=True) if each[1] >= 0]
        stops = [
            self._stop_criteria.check(seq.tokens, tokens, self._limit(seq) - seq.length, seq.request.sampling)
            for seq, _, tokens, _, _ in updates
        ]
        finished = dict[int, Finish]()
        for (seq, row, tokens, logps, plains), (count, finish) in zip(updates, stops, strict=True):
            seq.append(tokens[:count], logps[:count], plains[:count], self.version)
            if finish:
                finished[row] = finish
        for row in sorted(finished, reverse=True):  # the last row takes the place of one that is removed
            seq = self._running[row]
            self._keep_or_drop(seq, self._remove(row))
            self._finish(seq, finished[row])

    def _keep_or_drop(self, seq: Sequence, pages: list[int]) -> None:
        """Keep the keys and values of a finished sequence for the next turn of its conversation, without those of its
        last token, which were never needed; unless older weights computed some."""
        conversation = seq.request.sampling.conversation
        if not conversation or not self._prefix_cache.enabled or [each.version for each in seq.spans] != [self.version]:
            return self._cache.drop(pages)
        used = pages_for(seq.length - 1)
        self._cache.drop(pages[used:])
        self._prefix_cache.put(conversation, (seq.request.prompt + tuple(seq.tokens))[:-1], pages[:used])

    def _finish(self, seq: Sequence, finish: Finish) -> None:
        request, text = seq.request, self._stop_criteria.text(seq.tokens, seq.request.sampling)
        request.finished[seq.index] = seq.completion(text, finish, self.version)
        if len(request.finished) == request.n:
            if self._drafts:
                self._drafts.forget(request)
            request.deliver(request)


def _stored(lengths: abc.Sequence[int], left: abc.Sequence[int], steps: int) -> list[int]:
    """Tokens of each sequence whose keys and values are stored after `steps` more steps: not yet those of the last."""
    return [length - 1 + min(steps, more + 1) for length, more in zip(lengths, left, strict=True)]
