"""Attention for generation on a processor: prompts piece by piece, and one token for every slot.

Query heads that share keys are folded into the query's length, so that no key is ever repeated.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from dojang.engine.cpu_ops import look_for
from dojang.engine.decoder import Attend, Decoder, Shape
from dojang.engine.kv_cache import Prefix, Slots

__all__ = ["Piece", "over_prefixes", "over_slots"]

_GRAIN = 32
"""Attention looks at a multiple of so many positions."""
_CALL = 512
"""Another call of attention takes as long as looking at about so many positions more."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some tokens of a prefix, to be read after those before them."""

    prefix: Prefix
    start: int
    end: int

    @property
    def whole(self) -> bool:
        return self.start == 0 and self.end == len(self.prefix.tokens)

    def store(self, layer: int, k_CKD: Tensor, v_CKD: Tensor) -> None:
        """Keep what the layer made of these tokens."""
        keys_LKTD, values_LKTD = self.prefix.kept
        keys_LKTD[layer, :, self.start : self.end] = k_CKD.transpose(0, 1)
        values_LKTD[layer, :, self.start : self.end] = v_CKD.transpose(0, 1)


def over_prefixes(pieces: Sequence[Piece], decoder: Decoder) -> Attend:
    """Attention for the tokens of these pieces, one piece after the other."""
    shape = decoder.shape
    sizes = [piece.end - piece.start for piece in pieces]
    for piece in pieces:
        piece.prefix.make_room(shape, decoder.dtype, decoder.device)

    def attend(layer: int, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> Tensor:
        seen = []
        parts = zip(pieces, *(each.split_with_sizes(sizes) for each in (q_NHD, k_NKD, v_NKD)), strict=True)
        for piece, q_CHD, k_CKD, v_CKD in parts:
            piece.store(layer, k_CKD, v_CKD)
            keys_LKTD, values_LKTD = piece.prefix.kept
            mask_CT = None
            if piece.start:
                reach = (len(q_CHD), piece.end)
                mask_CT = torch.ones(reach, dtype=torch.bool, device=q_NHD.device).tril(piece.start)
            seen_HCD = scaled_dot_product_attention(
                q_CHD.transpose(0, 1)[None],
                keys_LKTD[layer, None, :, : piece.end],
                values_LKTD[layer, None, :, : piece.end],
                attn_mask=mask_CT,
                is_causal=mask_CT is None,
                enable_gqa=shape.heads != shape.kv_heads,
            )[0]
            seen.append(seen_HCD.transpose(0, 1))
        return torch.cat(seen)

    return attend


def over_slots(slots: Slots, position_N: Sequence[int], shape: Shape) -> Attend:
    """Attention for one token in each of the first N slots, at these positions."""
    if (look := look_for(slots.keys_LSKTD)) is not None:
        length_N = torch.tensor(position_N) + 1
        return lambda layer, q_NHD, k_NKD, v_NKD: look(
            q_NHD, k_NKD, v_NKD, slots.keys_LSKTD[layer], slots.values_LSKTD[layer], length_N
        )
    count, device = len(position_N), slots.keys_LSKTD.device
    runs = _runs(slots, position_N)
    row_N, place_N = torch.arange(count, device=device), torch.tensor(position_N, device=device)
    visible_NT = torch.arange(max(size for _, size in runs), device=device) <= place_N[:, None]
    keys_LSKTD, values_LSKTD = slots.keys_LSKTD, slots.values_LSKTD
    zero = torch.zeros((), dtype=keys_LSKTD.dtype, device=device)
    mask_N11T = zero.where(visible_NT, -torch.inf)[:, None, None]
    heads = (shape.kv_heads, shape.heads // shape.kv_heads)

    def attend(layer: int, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> Tensor:
        keys_SKTD, values_SKTD = keys_LSKTD[layer], values_LSKTD[layer]
        keys_SKTD[row_N, :, place_N] = k_NKD
        values_SKTD[row_N, :, place_N] = v_NKD
        q_NKGD = q_NHD.reshape(count, *heads, shape.head)
        seen = [
            scaled_dot_product_attention(
                q_NKGD[run],
                keys_SKTD[run, :, :size],
                values_SKTD[run, :, :size],
                attn_mask=mask_N11T[run, ..., :size],
            )
            for run, size in runs
        ]
        return torch.cat(seen).reshape(count, shape.heads, shape.head)

    return attend


def _runs(slots: Slots, position_N: Sequence[int]) -> list[tuple[slice, int]]:
    """Neighbouring slots to look at together, and at how many positions: as many as the longest of them has."""
    runs: list[tuple[slice, int]] = []
    for first in range(0, len(position_N), slots.run):
        run = slice(first, min(first + slots.run, len(position_N)))
        size = min(slots.length, -(-(max(position_N[run]) + 1) // _GRAIN) * _GRAIN)
        if runs:
            before, most = runs[-1][0], max(runs[-1][1], size)
            more = (run.stop - run.start) * (most - size) + (before.stop - before.start) * (most - runs[-1][1])
            if more < _CALL:
                runs[-1] = slice(before.start, run.stop), most
                continue
        runs.append((run, size))
    return runs
