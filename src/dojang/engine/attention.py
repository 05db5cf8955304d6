"""Attention on a CPU: chunked prefill, and decode of the new tokens of running sequences.

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
from dojang.engine.kv_cache_size import PAGE_TOKENS, pages_for
from dojang.engine.shape import Shape

__all__ = ["PrefillChunk", "decode_attention", "prefill_attention"]

_ROWS_PER_CALL = 16
"""Sequences per attention call without compiled operations: fewer are too little work for a call, more differ too much
in length."""
_CALL_COST = 512
"""Overhead of one more attention call, in positions attended to."""


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Tokens [start, end) of a prefix, prefilled after the tokens before them. The prefix has pages for them."""

    prefix: Prefix
    start: int
    end: int


def prefill_attention(chunks: Sequence[PrefillChunk], cache: KvCache, decoder: Decoder) -> Attend:
    """Return the attention function that prefills these chunks, one after the other."""
    shape = decoder.shape
    sizes = [chunk.end - chunk.start for chunk in chunks]
    slots = cache.slots([(chunk.prefix, chunk.start, chunk.end) for chunk in chunks])
    tables = [
        torch.tensor(chunk.prefix.pages[: pages_for(chunk.end)], device=decoder.device) if chunk.start else None
        for chunk in chunks
    ]
    masks = [
        {window: _causal_mask(chunk, window, decoder.device, always=shape.softcap > 0) for window in set(shape.windows)}
        for chunk in chunks
    ]

    def attend(layer: int, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> Tensor:
        cache.store(layer, slots, k_NKD, v_NKD)
        outputs = []
        split = (each.split_with_sizes(sizes) for each in (q_NHD, k_NKD, v_NKD))
        for chunk, table, mask, q_CHD, k_CKD, v_CKD in zip(chunks, tables, masks, *split, strict=True):
            k_KTD, v_KTD = k_CKD.transpose(0, 1), v_CKD.transpose(0, 1)
            if table is not None:
                k_KTD, v_KTD = cache.read(layer, table, chunk.end)
            out_1HCD = _attend(q_CHD.transpose(0, 1)[None], k_KTD[None], v_KTD[None], mask[shape.windows[layer]], shape)
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


def decode_attention(cache: KvCache, position_N: Sequence[int], shape: Shape, row_N: Sequence[int]) -> Attend:
    """Return the attention function for N tokens at these positions of these rows of the page table."""
    table = cache.page_table[row_N]
    if (compiled := compiled_attention_for(cache.keys_LPKTD)) is not None:
        length_N = torch.tensor(position_N) + 1
        return lambda layer, q_NHD, k_NKD, v_NKD: compiled(
            q_NHD,
            k_NKD,
            v_NKD,
            cache.keys_LPKTD[layer],
            cache.values_LPKTD[layer],
            table,
            length_N,
            scale=shape.scale,
            window=shape.windows[layer],
            softcap=shape.softcap,
        )
    count, device = len(position_N), cache.keys_LPKTD.device
    groups = _groups(position_N)
    last_N = torch.tensor(position_N, device=device)
    page_table = torch.from_numpy(table[:, : pages_for(max(position_N) + 1)]).long().to(device)
    slots = page_table.gather(1, (last_N // PAGE_TOKENS)[:, None])[:, 0], last_N % PAGE_TOKENS
    place_T = torch.arange(page_table.shape[1] * PAGE_TOKENS, device=device)
    age_NT = last_N[:, None] - place_T
    zero = torch.zeros((), dtype=cache.keys_LPKTD.dtype, device=device)
    masks = {
        window: zero.where((age_NT >= 0) & (age_NT < (window or len(place_T))), -torch.inf)[:, None, None]
        for window in set(shape.windows)
    }
    grouped = [(torch.tensor(rows, device=device), size, pages_for(size)) for rows, size in groups]
    order_N = torch.cat([rows for rows, _, _ in grouped]).argsort()
    heads = (shape.kv_heads, shape.heads // shape.kv_heads)

    def attend(layer: int, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> Tensor:
        cache.store(layer, slots, k_NKD, v_NKD)
        q_NKGD = q_NHD.reshape(count, *heads, shape.head)
        mask_N11T = masks[shape.windows[layer]]
        outputs = [
            _attend(
                q_NKGD[rows],
                *cache.read(layer, page_table[rows, :pages], size),
                mask_N11T[rows, ..., :size],
                shape,
            )
            for rows, size, pages in grouped
        ]
        return torch.cat(outputs)[order_N].reshape(count, shape.heads, shape.head)

    return attend


def _groups(position_N: Sequence[int]) -> list[tuple[list[int], int]]:
    """Divide rows into groups of similar length, one attention call each, with the positions that its longest needs."""
    rows = sorted(range(len(position_N)), key=lambda row: -position_N[row])
    groups: list[tuple[list[int], int]] = []
    for first in range(0, len(rows), _ROWS_PER_CALL):
        group = rows[first : first + _ROWS_PER_CALL]
        size = position_N[group[0]] + 1
        if groups and len(group) * (groups[-1][1] - size) < _CALL_COST:
            groups[-1][0].extend(group)
        else:
            groups.append((group, size))
    return groups
