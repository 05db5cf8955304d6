"""Attention for generation on a processor: prompts piece by piece, and one token for every slot.

Query heads that share keys are folded into the query's length, so that no key is ever repeated.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from dojang.engines.decoder import Attend, Decoder, Shape
from dojang.engines.slots import Prefix, Slots

__all__ = ["Piece", "over_prefixes", "over_slots"]

_GRAIN = 32
"""Attention looks at a multiple of so many positions."""


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


def over_slots(slots: Slots, position_N: Tensor, longest: int, shape: Shape) -> Attend:
    """Attention for one token in each of the first N slots, at these positions, all below `longest`."""
    count = len(position_N)
    row_N = torch.arange(count, device=position_N.device)
    size = min(slots.length, -(-longest // _GRAIN) * _GRAIN)
    visible_NT = torch.arange(size, device=position_N.device) <= position_N[:, None]
    keys_LSKTD, values_LSKTD = slots.keys_LSKTD, slots.values_LSKTD
    zero = torch.zeros((), dtype=keys_LSKTD.dtype, device=position_N.device)
    mask_N11T = zero.where(visible_NT, -torch.inf)[:, None, None]
    heads = (shape.kv_heads, shape.heads // shape.kv_heads)

    def attend(layer: int, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> Tensor:
        keys_SKTD, values_SKTD = keys_LSKTD[layer], values_LSKTD[layer]
        keys_SKTD[row_N, :, position_N] = k_NKD
        values_SKTD[row_N, :, position_N] = v_NKD
        seen = scaled_dot_product_attention(
            q_NHD.reshape(count, *heads, shape.head),
            keys_SKTD[:count, :, :size],
            values_SKTD[:count, :, :size],
            attn_mask=mask_N11T,
        )
        return seen.reshape(count, shape.heads, shape.head)

    return attend
