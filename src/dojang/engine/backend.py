"""Picks the implementations for a device: plain torch and C++ on a CPU, Triton and CUDA graphs on a GPU."""

from collections.abc import Callable, Mapping, Sequence

import torch

from dojang.engine.attention import PrefillChunk, prefill_attention
from dojang.engine.decode import DecodeRunner, EagerRunner
from dojang.engine.decoder import Attend, Decoder
from dojang.engine.kv_cache import KvCache, Prefix

__all__ = ["make_backend"]

PrefillAttention = Callable[[Sequence[PrefillChunk], Decoder], Attend]
WritePrefixes = Callable[[KvCache, Mapping[Prefix, Sequence[int]]], None]


def make_backend(decoder: Decoder, cache: KvCache, slots: int) -> tuple[DecodeRunner, PrefillAttention, WritePrefixes]:
    """Return how to decode, to prefill, and to copy prefixes into slots on the decoder's device."""
    if not decoder.fused:
        return EagerRunner(decoder, cache), prefill_attention, KvCache.write_prefixes
    from dojang.engine.cuda_graphs import CudaGraphRunner, packed_prefill_attention, write_prefixes  # loads Triton

    packs = (
        decoder.dtype in (torch.bfloat16, torch.float16)
        and decoder.shape.head % 8 == 0
        and torch.cuda.get_device_capability(decoder.device) >= (8, 0)
    )
    attention = packed_prefill_attention if packs else prefill_attention
    return CudaGraphRunner(decoder, cache, slots), attention, write_prefixes
