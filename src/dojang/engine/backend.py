"""Picks the implementations for a device: plain torch and C++ on a CPU, Triton and CUDA graphs on a GPU."""

from collections.abc import Callable, Sequence

import torch

from dojang.engine.attention import PrefillChunk, prefill_attention
from dojang.engine.decode import DecodeRunner, EagerRunner
from dojang.engine.decoder import Attend, Decoder
from dojang.engine.kv_cache import KvCache

__all__ = ["make_backend"]

PrefillAttention = Callable[[Sequence[PrefillChunk], KvCache, Decoder], Attend]


def make_backend(decoder: Decoder, cache: KvCache, max_num_seqs: int) -> tuple[DecodeRunner, PrefillAttention]:
    """Return how to decode and to prefill on the decoder's device."""
    if not decoder.fused:
        return EagerRunner(decoder, cache), prefill_attention
    from dojang.engine.cuda_graphs import CudaGraphRunner, packed_prefill_attention  # loads Triton

    packs = (
        decoder.dtype in (torch.bfloat16, torch.float16)
        and decoder.shape.head % 8 == 0
        and torch.cuda.get_device_capability(decoder.device) >= (8, 0)
    )
    return CudaGraphRunner(decoder, cache, max_num_seqs), packed_prefill_attention if packs else prefill_attention
