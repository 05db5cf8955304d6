"""Decode on a GPU with CUDA graphs: a decode step is captured once and replayed for every token.

Tokens, positions, random numbers and samples stay on the GPU; the CPU collects them every few steps. A sequence that
finishes in between is decoded on until then, and the extra tokens are discarded. A graph has a fixed number of rows, so
one is captured for each of a few sizes; unused rows are padding that writes into a dummy slot of the KV cache.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch import Tensor

from dojang.engine.attention import PrefillChunk, prefill_attention
from dojang.engine.decode import SampledTokens, StepInputs, sample
from dojang.engine.decoder import Attend, Decoder
from dojang.engine.kv_cache import KvCache, Prefix
from dojang.engine.triton_kernels import Sampler, attend_cache, copy_prefixes
from dojang.types import Sampling

__all__ = ["CudaGraphRunner", "packed_prefill_attention", "write_prefixes"]

_MAX_STEPS = 16
"""Most decode steps between two collections of tokens."""


class CudaGraphRunner:
    """DecodeRunner on a GPU."""

    def __init__(self, decoder: Decoder, cache: KvCache, slots: int) -> None:
        self._decoder, self._cache = decoder, cache
        device = decoder.device
        rows = _graph_size(slots)
        self._token_N = torch.zeros(rows, dtype=torch.int64, device=device)
        self._position_N = torch.zeros(rows, dtype=torch.int32, device=device)
        self._slot_N = torch.zeros(rows, dtype=torch.int32, device=device)
        self._sampler = Sampler(rows, _MAX_STEPS, decoder.shape.vocabulary, device)
        self._graphs: dict[tuple[int, bool], tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._count = 0
        """Rows that are no padding."""
        self._pool: Any = None
        self._capturing = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        """Graphs keep the priority of the stream that captures them."""
        self._captured_keys: ref[Tensor] | None = None

    def num_steps(self, samplings: Sequence[Sampling], left: Sequence[int]) -> int:
        if _needs_eager_sampling(samplings):
            return 1
        return min(_MAX_STEPS, max(left), max(4, int(np.median(left))))

    def decode(
        self, token_N: Sequence[int], position_N: Sequence[int], inputs: StepInputs
    ) -> Callable[[], SampledTokens]:
        count = len(token_N)
        rows = _graph_size(count)
        padding = rows - count
        _fill(self._token_N, [*token_N, *[0] * padding])
        _fill(self._position_N, [*position_N, *[0] * padding])
        _fill(self._slot_N, [*map(self._cache.physical_slot, range(count)), *[self._cache.dummy_slot] * padding])
        if _needs_eager_sampling(inputs.samplings):
            graph, logits_NV = self._graph(rows, samples=False)
            graph.replay()
            sampled = sample(logits_NV[:count], inputs)
            return lambda: sampled
        _fill(self._sampler.temperature_N, [*(each.temperature for each in inputs.samplings), *[1.0] * padding])
        return self._run_steps(inputs)

    def can_continue(self, samplings: Sequence[Sampling]) -> bool:
        return not _needs_eager_sampling(samplings)

    def continue_decoding(self, kept: Sequence[int], inputs: StepInputs) -> Callable[[], SampledTokens]:
        count = len(kept)
        if count < self._count:
            padding = [0] * (_graph_size(count) - count)
            kept_N = torch.tensor([*kept, *padding]).pin_memory().to(self._token_N.device, non_blocking=True)
            for each_N in (self._token_N, self._position_N, self._slot_N, self._sampler.temperature_N):
                each_N[: len(kept_N)] = each_N[kept_N]
            self._slot_N[count : len(kept_N)] = self._cache.dummy_slot
            self._position_N[count : len(kept_N)] = 0
        return self._run_steps(inputs)

    def _run_steps(self, inputs: StepInputs) -> Callable[[], SampledTokens]:
        """Replay decode steps from the current state of the rows."""
        steps, self._count = inputs.uniform_RN.shape
        uniform_RN = torch.from_numpy(inputs.uniform_RN).float().pin_memory()
        self._sampler.uniform_RN[:steps, : self._count].copy_(uniform_RN, non_blocking=True)
        self._sampler.step.zero_()
        graph, _ = self._graph(_graph_size(self._count), samples=True)
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

    def _graph(self, rows: int, *, samples: bool) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        # The KV cache may have grown: graphs hold its addresses.
        if self._captured_keys is None or self._captured_keys() is not self._cache.keys_LSKTD:
            self._graphs.clear()
            self._pool = None
            self._captured_keys = ref(
                self._cache.keys_LSKTD
            )  # weak, so that the old cache is freed before the new one is allocated
        if (rows, samples) not in self._graphs:
            self._graphs[rows, samples] = self._capture(rows, samples=samples)
        return self._graphs[rows, samples]

    def _capture(self, rows: int, *, samples: bool) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        kept = [each.clone() for each in (self._token_N, self._position_N, self._sampler.step)]
        # Warm-up: compiles kernels and makes allocations that are not allowed during capture.
        self._step(rows, samples=samples)
        graph = torch.cuda.CUDAGraph()
        # Thread-local: another thread may use the GPU meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._capturing, capture_error_mode="thread_local"):
            logits_NV = self._step(rows, samples=samples)
        self._pool = graph.pool()
        for target, value in zip((self._token_N, self._position_N, self._sampler.step), kept, strict=True):
            target.copy_(value)
        return graph, logits_NV

    def _step(self, rows: int, *, samples: bool) -> Tensor:
        slot_N, position_N, token_N = self._slot_N[:rows], self._position_N[:rows], self._token_N[:rows]
        keys_LSKTD, values_LSKTD = self._cache.keys_LSKTD, self._cache.values_LSKTD

        def attend(layer: int, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> Tensor:
            return attend_cache(q_NHD, k_NKD, v_NKD, keys_LSKTD[layer], values_LSKTD[layer], position_N, slot_N)

        logits_NV = self._decoder.logits(self._decoder.forward(token_N, position_N, attend))
        if samples:
            self._sampler.sample(logits_NV, token_N, position_N)
        return logits_NV


def packed_prefill_attention(chunks: Sequence[PrefillChunk], decoder: Decoder) -> Attend:
    """Return the attention function that prefills all chunks with start 0 in one variable-length kernel.

    Chunks with a later start must come first.
    """
    shape, dtype, device = decoder.shape, decoder.dtype, decoder.device
    later = [chunk for chunk in chunks if chunk.start]
    fresh = chunks[len(later) :]
    before = sum(chunk.end - chunk.start for chunk in later)
    sizes = [chunk.end for chunk in fresh]
    bounds = [0, *np.cumsum(sizes).tolist()]
    keys_LNKD, values_LNKD = torch.empty(
        (2, shape.layers, bounds[-1], shape.kv_heads, shape.head), dtype=dtype, device=device
    ).unbind()
    parts = []
    for chunk, start in zip(fresh, bounds, strict=False):
        if chunk.is_whole:
            chunk.prefix.set_kv(
                *(each[:, start : start + chunk.end].transpose(1, 2) for each in (keys_LNKD, values_LNKD))
            )
        else:  # later chunks of this prefix need memory next to this one
            chunk.prefix.allocate(shape, dtype, device)
            parts.append((chunk, slice(start, start + chunk.end)))
    bounds_B = torch.tensor(bounds, dtype=torch.int32, device=device)
    attend_later = prefill_attention(later, decoder)

    def attend(layer: int, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> Tensor:
        outputs = [attend_later(layer, q_NHD[:before], k_NKD[:before], v_NKD[:before])] if later else []
        if fresh:
            q_NHD, k_NKD, v_NKD = q_NHD[before:], k_NKD[before:], v_NKD[before:]
            keys_LNKD[layer], values_LNKD[layer] = k_NKD, v_NKD
            for chunk, place in parts:
                chunk.store(layer, k_NKD[place], v_NKD[place])
            outputs.append(
                torch.ops.aten._flash_attention_forward(
                    q_NHD, k_NKD, v_NKD, bounds_B, bounds_B, max(sizes), max(sizes), 0.0, True, False
                )[0]
            )
        return torch.cat(outputs)

    return attend


def write_prefixes(cache: KvCache, slots_of: Mapping[Prefix, Sequence[int]]) -> None:
    """Copy each prefix into its slots, in one kernel."""
    copies = [
        (*prefix.kv, len(prefix.tokens), cache.physical_slot(slot))
        for prefix, slots in slots_of.items()
        for slot in slots
    ]
    copy_prefixes(copies, cache.keys_LSKTD, cache.values_LSKTD)


def _needs_eager_sampling(samplings: Sequence[Sampling]) -> bool:
    """Whether a sequence needs more than a temperature: top-k, top-p, min-p or a logit bias."""
    return any(each.truncated or each.bias for each in samplings)


def _graph_size(count: int) -> int:
    """Rows of the smallest graph for `count` sequences: a power of two, or from 48 on also three quarters of one."""
    power = 1 << max(count - 1, 0).bit_length()
    return power * 3 // 4 if power >= 64 and count <= power * 3 // 4 else power


def _fill(target: Tensor, values: Sequence[float]) -> None:
    target[: len(values)].copy_(torch.tensor(values, dtype=target.dtype).pin_memory(), non_blocking=True)
