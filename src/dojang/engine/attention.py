"""Attention on a CPU: chunked prefill, and decode of one token per slot of the KV cache.

Grouped-query attention folds the query heads that share a key head into the query length, so that no key is repeated.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from dojang.engine.cpu_ops import compiled_attention_for
from dojang.engine.decoder import Attend, Decoder
from dojang.engine.kv_cache import KvCache, Prefix
from dojang.engine.shape import Shape

__all__ = ["PrefillChunk", "decode_attention", "prefill_attention"]

_POSITION_MULTIPLE = 32
"""Decode attention covers a multiple of this many positions."""
_CALL_COST = 512
"""Overhead of one more attention call, in positions attended to."""


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Tokens [start, end) of a prefix, prefilled after the tokens before them."""

    prefix: Prefix
    start: int
    end: int

    @property
    def is_whole(self) -> bool:
        return self.start == 0 and self.end == len(self.prefix.tokens)

    def store(self, layer: int, k_CKD: Tensor, v_CKD: Tensor) -> None:
        """Store a layer's keys and values of these tokens in the prefix."""
        keys_LKTD, values_LKTD = self.prefix.kv
        keys_LKTD[layer, :, self.start : self.end] = k_CKD.transpose(0, 1)
        values_LKTD[layer, :, self.start : self.end] = v_CKD.transpose(0, 1)


def prefill_attention(chunks: Sequence[PrefillChunk], decoder: Decoder) -> Attend:
    """Return the attention function that prefills these chunks, one after the other."""
    shape = decoder.shape
    sizes = [chunk.end - chunk.start for chunk in chunks]
    for chunk in chunks:
        chunk.prefix.allocate(shape, decoder.dtype, decoder.device)
    masks = [
        {window: _causal_mask(chunk, window, decoder.device, always=shape.softcap > 0) for window in set(shape.windows)}
        for chunk in chunks
    ]

    def attend(layer: int, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> Tensor:
        outputs = []
        parts = zip(chunks, masks, *(each.split_with_sizes(sizes) for each in (q_NHD, k_NKD, v_NKD)), strict=True)
        for chunk, mask, q_CHD, k_CKD, v_CKD in parts:
            chunk.store(layer, k_CKD, v_CKD)
            keys_LKTD, values_LKTD = chunk.prefix.kv
            out_1HCD = _attend(
                q_CHD.transpose(0, 1)[None],
                keys_LKTD[layer, None, :, : chunk.end],
                values_LKTD[layer, None, :, : chunk.end],
                mask[shape.windows[layer]],
                shape,
            )
            outputs.append(out_1HCD[0].transpose(0, 1))
        return torch.cat(outputs)

    return attend


def _causal_mask(chunk: PrefillChunk, window: int, device: torch.device, *, always: bool) -> Tensor | None:
    """Tokens that each token of a chunk attends to, [C, T]; None if those are just all before it, unless `always`."""
    windowed = 0 < window < chunk.end
    if not (chunk.start or windowed or always):
        return None
    mask_CT = torch.ones(chunk.end - chunk.start, chunk.end, dtype=torch.bool, device=device).tril(chunk.start)
    return mask_CT.triu(chunk.start - window + 1) if windowed else mask_CT


def _attend(q_BHQD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, mask: Tensor | None, shape: Shape) -> Tensor:
    """Attention with the model's scale and soft-capping; without a mask, causal."""
    if not shape.softcap:
        return scaled_dot_product_attention(
            q_BHQD,
            k_BKTD,
            v_BKTD,
            attn_mask=mask,
            is_causal=mask is None,
            scale=shape.scale,
            enable_gqa=q_BHQD.shape[1] != k_BKTD.shape[1],
        )
    assert mask is not None
    groups = q_BHQD.shape[1] // k_BKTD.shape[1]
    k_BHTD, v_BHTD = k_BKTD.repeat_interleave(groups, 1), v_BKTD.repeat_interleave(groups, 1)
    score_BHQT = (q_BHQD @ k_BHTD.transpose(-1, -2)) * shape.scale
    score_BHQT = (score_BHQT / shape.softcap).tanh() * shape.softcap
    score_BHQT = score_BHQT.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else score_BHQT + mask
    precise = torch.promote_types(score_BHQT.dtype, torch.float32)
    return score_BHQT.softmax(-1, dtype=precise).to(v_BHTD.dtype) @ v_BHTD


def decode_attention(cache: KvCache, position_N: Sequence[int], shape: Shape) -> Attend:
    """Return the attention function for one token in each of the first N slots, at these positions."""
    if (compiled := compiled_attention_for(cache.keys_LSKTD)) is not None:
        length_N = torch.tensor(position_N) + 1
        return lambda layer, q_NHD, k_NKD, v_NKD: compiled(
            q_NHD,
            k_NKD,
            v_NKD,
            cache.keys_LSKTD[layer],
            cache.values_LSKTD[layer],
            length_N,
            scale=shape.scale,
            window=shape.windows[layer],
            softcap=shape.softcap,
        )
    count, device = len(position_N), cache.keys_LSKTD.device
    groups = _slot_groups(cache, position_N)
    slot_N, last_N = torch.arange(count, device=device), torch.tensor(position_N, device=device)
    place_T = torch.arange(max(size for _, size in groups), device=device)
    age_NT = last_N[:, None] - place_T
    zero = torch.zeros((), dtype=cache.keys_LSKTD.dtype, device=device)
    masks = {
        window: zero.where((age_NT >= 0) & (age_NT < (window or cache.length)), -torch.inf)[:, None, None]
        for window in set(shape.windows)
    }
    keys_LSKTD, values_LSKTD = cache.keys_LSKTD, cache.values_LSKTD
    heads = (shape.kv_heads, shape.heads // shape.kv_heads)

    def attend(layer: int, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> Tensor:
        keys_SKTD, values_SKTD = keys_LSKTD[layer], values_LSKTD[layer]
        keys_SKTD[slot_N, :, last_N] = k_NKD
        values_SKTD[slot_N, :, last_N] = v_NKD
        q_NKGD = q_NHD.reshape(count, *heads, shape.head)
        mask_N11T = masks[shape.windows[layer]]
        outputs = [
            _attend(
                q_NKGD[group],
                keys_SKTD[group, :, :size],
                values_SKTD[group, :, :size],
                mask_N11T[group, ..., :size],
                shape,
            )
            for group, size in groups
        ]
        return torch.cat(outputs).reshape(count, shape.heads, shape.head)

    return attend


def _slot_groups(cache: KvCache, position_N: Sequence[int]) -> list[tuple[slice, int]]:
    """Split the slots into groups of neighbours, one attention call each, with the positions its longest needs."""
    groups: list[tuple[slice, int]] = []
    for first in range(0, len(position_N), cache.slots_per_call):
        group = slice(first, min(first + cache.slots_per_call, len(position_N)))
        size = min(cache.length, -(-(max(position_N[group]) + 1) // _POSITION_MULTIPLE) * _POSITION_MULTIPLE)
        if groups:
            before, longest = groups[-1][0], max(groups[-1][1], size)
            wasted = (group.stop - group.start) * (longest - size)
            wasted += (before.stop - before.start) * (longest - groups[-1][1])
            if wasted < _CALL_COST:
                groups[-1] = slice(before.start, group.stop), longest
                continue
        groups.append((group, size))
    return groups
