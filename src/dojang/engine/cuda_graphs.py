"""Decode on a GPU with CUDA graphs: a decode step is captured once and replayed for every token.

Tokens, positions, random numbers and samples stay on the GPU; the CPU collects them every few steps. A sequence that
finishes in between is decoded on until then, and the extra tokens are discarded. A graph has a fixed number of rows, so
one is captured for each of a few sizes; unused rows are padding. Padding, and sequences past the end of their pages,
write into page 0 of the KV cache, which no sequence has.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dojang.core.cuda_sync import capturing
from dojang.engine.attention import PrefillChunk, prefill_attention
from dojang.engine.decode import SampledTokens, StepInputs, sample, verify_drafts
from dojang.engine.decoder import Attend, Decoder
from dojang.engine.kv_cache import KvCache, Slots
from dojang.engine.kv_cache_size import PAGE_TOKENS, pages_for
from dojang.engine.triton_kernels import Sampler, attend_cache
from dojang.types import Sampling

__all__ = ["CudaGraphRunner", "packed_prefill_attention"]

_MAX_STEPS = 16
"""Most decode steps between two collections of tokens."""
_PAGES_PAST_END = pages_for(2 * _MAX_STEPS)
"""Pages by which decoding may run past the last page of a finished sequence: two collections of steps may have started
before its end is seen."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """Kind of a graph."""

    rows: int
    samples: bool
    """Whether it samples tokens; else it ends with the logits."""
    drafted: bool = False
    """Whether several rows may be tokens of one sequence."""


class CudaGraphRunner:
    """DecodeRunner on a GPU."""

    def __init__(self, decoder: Decoder, cache: KvCache, max_num_seqs: int) -> None:
        self._decoder, self._cache = decoder, cache
        device = decoder.device
        rows = _graph_size(decoder.cheap_rows(max_num_seqs))  # draft tokens have rows of their own
        self._token_N = torch.zeros(rows, dtype=torch.int64, device=device)
        self._position_N = torch.zeros(rows, dtype=torch.int32, device=device)
        self._page_table = torch.zeros(rows, cache.page_table.shape[1], dtype=torch.int32, device=device)
        self._sampler = Sampler(rows, _MAX_STEPS, decoder.shape.vocabulary, device)
        self._graphs: dict[_Kind, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._count = 0
        """Rows that are no padding."""
        self._pool: Any = None
        self._capturing = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        """Graphs keep the priority of the stream that captures them."""

    def num_steps(self, samplings: Sequence[Sampling], left: Sequence[int]) -> int:
        if _needs_eager_sampling(samplings):
            return 1
        return min(_MAX_STEPS, max(left), max(4, int(np.median(left))))

    def decode(
        self, token_N: Sequence[int], position_N: Sequence[int], inputs: StepInputs
    ) -> Callable[[], SampledTokens]:
        if any(inputs.drafts):
            return verify_drafts(token_N, position_N, inputs, partial(self._decode, drafted=True))
        return self._decode(token_N, position_N, range(len(token_N)), inputs)

    def _decode(
        self,
        token_N: Sequence[int],
        position_N: Sequence[int],
        row_N: Sequence[int],
        inputs: StepInputs,
        *,
        drafted: bool = False,
    ) -> Callable[[], SampledTokens]:
        count = len(token_N)
        rows = _graph_size(count)
        padding = rows - count
        _fill(self._token_N, [*token_N, *[0] * padding])
        _fill(self._position_N, [*position_N, *[0] * padding])
        self._fill_page_table(row_N, rows)
        if _needs_eager_sampling(inputs.samplings):
            graph, logits_NV = self._graph(_Kind(rows, samples=False, drafted=drafted))
            graph.replay()
            sampled = sample(logits_NV[:count], inputs)
            return lambda: sampled
        _fill(self._sampler.temperature_N, [*(each.temperature for each in inputs.samplings), *[1.0] * padding])
        return self._run_steps(inputs, drafted=drafted)

    def can_continue(self, samplings: Sequence[Sampling]) -> bool:
        return not _needs_eager_sampling(samplings)

    def continue_decoding(
        self, kept: Sequence[int], rows: Sequence[int], inputs: StepInputs
    ) -> Callable[[], SampledTokens]:
        count = len(kept)
        size = _graph_size(count)
        if count < self._count:
            padding = [0] * (size - count)
            kept_N = torch.tensor([*kept, *padding]).pin_memory().to(self._token_N.device, non_blocking=True)
            for each_N in (self._token_N, self._position_N, self._sampler.temperature_N):
                each_N[: len(kept_N)] = each_N[kept_N]
            self._position_N[count : len(kept_N)] = 0
        self._fill_page_table(rows, size)
        return self._run_steps(inputs)

    def _fill_page_table(self, rows: Sequence[int], size: int) -> None:
        """Copy these rows of the page table to the GPU, and zeros behind them; the rest of `size` rows is padding."""
        used = self._cache.page_table[rows, : self._cache.used_width + _PAGES_PAST_END]
        table = np.zeros((size, used.shape[1]), np.int32)
        table[: len(rows)] = used
        self._page_table[:size, : table.shape[1]].copy_(torch.from_numpy(table).pin_memory(), non_blocking=True)

    def _run_steps(self, inputs: StepInputs, *, drafted: bool = False) -> Callable[[], SampledTokens]:
        """Replay decode steps from the current state of the rows."""
        steps, self._count = inputs.uniform_RN.shape
        uniform_RN = torch.from_numpy(inputs.uniform_RN).float().pin_memory()
        self._sampler.uniform_RN[:steps, : self._count].copy_(uniform_RN, non_blocking=True)
        self._sampler.step.zero_()
        graph, _ = self._graph(_Kind(_graph_size(self._count), samples=True, drafted=drafted))
        for _ in range(steps):
            graph.replay()
        return self._fetch(steps, self._count)

    def _fetch(self, steps: int, count: int) -> Callable[[], SampledTokens]:
        """Start copying the samples to the CPU; the GPU can run other work meanwhile."""
        sampler = self._sampler
        results = [
            each_RN[:steps, :count].to("cpu", non_blocking=True)
            for each_RN in (sampler.token_RN, sampler.logp_RN, sampler.plain_RN)
        ]
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record()

        def wait() -> SampledTokens:
            copied.synchronize()
            token_RN, logp_RN, plain_RN = results
            return SampledTokens(token_RN.long().numpy(), logp_RN.double().numpy(), plain_RN.double().numpy())

        return wait

    def _graph(self, kind: _Kind) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        if kind not in self._graphs:
            self._graphs[kind] = self._capture(kind)
        return self._graphs[kind]

    def _capture(self, kind: _Kind) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        kept = [each.clone() for each in (self._token_N, self._position_N, self._sampler.step)]
        # Warm-up: compiles kernels and makes allocations that are not allowed during capture.
        self._step(kind)
        graph = torch.cuda.CUDAGraph()
        # Thread-local: another thread may use the GPU meanwhile, but not wait for all of it.
        graphed = torch.cuda.graph(graph, pool=self._pool, stream=self._capturing, capture_error_mode="thread_local")
        with capturing, graphed:
            logits_NV = self._step(kind)
        self._pool = graph.pool()
        for target, value in zip((self._token_N, self._position_N, self._sampler.step), kept, strict=True):
            target.copy_(value)
        return graph, logits_NV

    def _step(self, kind: _Kind) -> Tensor:
        rows = kind.rows
        page_table, position_N, token_N = self._page_table[:rows], self._position_N[:rows], self._token_N[:rows]
        keys_LPKTD, values_LPKTD = self._cache.keys_LPKTD, self._cache.values_LPKTD

        slots = _slots(page_table, position_N) if kind.drafted else None

        def attend(layer: int, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> Tensor:
            if slots is not None:  # several rows are tokens of one sequence, and each attends to those before it
                self._cache.store(layer, slots, k_NKD, v_NKD)
            return attend_cache(q_NHD, k_NKD, v_NKD, keys_LPKTD[layer], values_LPKTD[layer], position_N, page_table)

        logits_NV = self._decoder.logits(self._decoder.forward(token_N, position_N, attend))
        if kind.samples:
            self._sampler.sample(logits_NV, token_N, position_N)
        return logits_NV


def packed_prefill_attention(chunks: Sequence[PrefillChunk], cache: KvCache, decoder: Decoder) -> Attend:
    """Return the attention function that prefills all chunks with start 0 in one variable-length kernel.

    Chunks with a later start must come first.
    """
    later = [chunk for chunk in chunks if chunk.start]
    fresh = chunks[len(later) :]
    if not fresh:
        return prefill_attention(later, cache, decoder)
    before = sum(chunk.end - chunk.start for chunk in later)
    sizes = [chunk.end for chunk in fresh]
    bounds_B = torch.tensor([0, *np.cumsum(sizes).tolist()], dtype=torch.int32, device=decoder.device)
    slots = cache.slots([(chunk.prefix, 0, chunk.end) for chunk in fresh])
    attend_later = prefill_attention(later, cache, decoder) if later else None

    def attend(layer: int, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> Tensor:
        outputs = [] if attend_later is None else [attend_later(layer, q_NHD[:before], k_NKD[:before], v_NKD[:before])]
        q_NHD, k_NKD, v_NKD = q_NHD[before:], k_NKD[before:], v_NKD[before:]
        cache.store(layer, slots, k_NKD, v_NKD)
        outputs.append(
            torch.ops.aten._flash_attention_forward(
                q_NHD, k_NKD, v_NKD, bounds_B, bounds_B, max(sizes), max(sizes), 0.0, True, False
            )[0]
        )
        return torch.cat(outputs)

    return attend


def _slots(page_table: Tensor, position_N: Tensor) -> Slots:
    """Slots of one token in each row of the page table."""
    at_N = position_N.long()
    page_N = page_table.gather(1, (at_N // PAGE_TOKENS)[:, None])[:, 0]
    return page_N.long(), at_N % PAGE_TOKENS


def _needs_eager_sampling(samplings: Sequence[Sampling]) -> bool:
    """Whether a sequence needs more than a temperature: top-k, top-p, min-p or a logit bias."""
    return any(each.truncated or each.bias for each in samplings)


def _graph_size(count: int) -> int:
    """Rows of the smallest graph for `count` sequences: a power of two, or from 48 on also three quarters of one."""
    power = 1 << max(count - 1, 0).bit_length()
    return power * 3 // 4 if power >= 64 and count <= power * 3 // 4 else power


def _fill(target: Tensor, values: Sequence[float]) -> None:
    target[: len(values)].copy_(torch.tensor(values, dtype=target.dtype).pin_memory(), non_blocking=True)
