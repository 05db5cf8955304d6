"""Decoding on a GPU: a step is recorded once as a CUDA graph and then replayed, turn after turn.

Tokens, positions, random numbers and what is drawn stay on the GPU; the processor looks at them every few turns.
A sequence that ends in between is written on until then, for nothing. A graph is for a number of rows, so there is one
for each of some numbers, and rows nobody needs are filled up with ones that write into a spare slot.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch import Tensor

from dojang.engine.attention import Piece, over_prefixes
from dojang.engine.decode import Drawn, Turn, draw
from dojang.engine.decoder import Attend, Decoder
from dojang.engine.kv_cache import Prefix, Slots
from dojang.engine.triton_kernels import Sampler, attend_slots, copy_prefixes
from dojang.types import Sampling

__all__ = ["GraphSteps", "fill_scattered", "over_packed"]

_TURNS = 16
"""The most between two looks."""


class GraphSteps:
    """Steps on a GPU."""

    def __init__(self, decoder: Decoder, slots: Slots, most: int) -> None:
        self._decoder, self._slots = decoder, slots
        device = decoder.device
        rows = _rows(most)
        self._token_N = torch.zeros(rows, dtype=torch.int64, device=device)
        self._position_N = torch.zeros(rows, dtype=torch.int32, device=device)
        self._slot_N = torch.zeros(rows, dtype=torch.int32, device=device)
        self._sampler = Sampler(rows, _TURNS, decoder.shape.vocabulary, device)
        self._graphs: dict[tuple[int, bool], tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._count = 0
        """Rows that are not spare."""
        self._pool: Any = None
        self._seen: ref[Tensor] | None = None

    def turns(self, samplings: Sequence[Sampling], left: Sequence[int]) -> int:
        if _special(samplings):
            return 1
        return min(_TURNS, max(left), max(4, int(np.median(left))))

    def take(self, token_N: Sequence[int], position_N: Sequence[int], turn: Turn) -> Callable[[], Drawn]:
        count = len(token_N)
        rows = _rows(count)
        spare = rows - count
        _fill(self._token_N, [*token_N, *[0] * spare])
        _fill(self._position_N, [*position_N, *[0] * spare])
        _fill(self._slot_N, [*map(self._slots.place, range(count)), *[self._slots.spare] * spare])
        if _special(turn.samplings):
            graph, logits_NV = self._graph(rows, draws=False)
            graph.replay()
            drawn = draw(logits_NV[:count], turn)
            return lambda: drawn
        _fill(self._sampler.heat_N, [*(each.temperature for each in turn.samplings), *[1.0] * spare])
        return self._drawn(turn)

    def goes_on(self, samplings: Sequence[Sampling]) -> bool:
        return not _special(samplings)

    def go_on(self, kept: Sequence[int], turn: Turn) -> Callable[[], Drawn]:
        count = len(kept)
        if count < self._count:
            spare = [0] * (_rows(count) - count)
            kept_N = torch.tensor([*kept, *spare]).pin_memory().to(self._token_N.device, non_blocking=True)
            for each_N in (self._token_N, self._position_N, self._slot_N, self._sampler.heat_N):
                each_N[: len(kept_N)] = each_N[kept_N]
            self._slot_N[count : len(kept_N)] = self._slots.spare
            self._position_N[count : len(kept_N)] = 0
        return self._drawn(turn)

    def _drawn(self, turn: Turn) -> Callable[[], Drawn]:
        """Take these turns from where the rows are."""
        turns, self._count = turn.uniform_RN.shape
        uniform_RN = torch.from_numpy(turn.uniform_RN).float().pin_memory()
        self._sampler.uniform_RN[:turns, : self._count].copy_(uniform_RN, non_blocking=True)
        self._sampler.turn.zero_()
        graph, _ = self._graph(_rows(self._count), draws=True)
        for _ in range(turns):
            graph.replay()
        return self._fetched(turns, self._count)

    def _fetched(self, turns: int, count: int) -> Callable[[], Drawn]:
        """Have what was drawn brought over; the GPU may be given other work meanwhile."""
        sampler = self._sampler
        results = [
            each_RN[:turns, :count].to("cpu", non_blocking=True)
            for each_RN in (sampler.token_RN, sampler.logp_RN, sampler.plain_RN)
        ]
        there = torch.cuda.Event()  # type: ignore[no-untyped-call]
        there.record()

        def wait() -> Drawn:
            there.synchronize()
            token_RN, logp_RN, plain_RN = results
            return Drawn(token_RN.long().numpy(), logp_RN.double().numpy(), plain_RN.double().numpy())

        return wait

    def forget(self) -> None:
        self._graphs.clear()
        self._pool = self._seen = None

    def _graph(self, rows: int, *, draws: bool) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        # If the slots have grown: graphs know them by their address.
        if self._seen is None or self._seen() is not self._slots.keys_LSKTD:
            self.forget()
            self._seen = ref(self._slots.keys_LSKTD)  # not itself: the old cache is freed before a new one is made
        if (rows, draws) not in self._graphs:
            self._graphs[rows, draws] = self._recorded(rows, draws=draws)
        return self._graphs[rows, draws]

    def _recorded(self, rows: int, *, draws: bool) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        kept = [each.clone() for each in (self._token_N, self._position_N, self._sampler.turn)]
        # Once before: it compiles, and libraries allocate what they must not while recording.
        self._step(rows, draws=draws)
        graph = torch.cuda.CUDAGraph()
        # Another thread may use the GPU meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            logits_NV = self._step(rows, draws=draws)
        self._pool = graph.pool()
        for target, value in zip((self._token_N, self._position_N, self._sampler.turn), kept, strict=True):
            target.copy_(value)
        return graph, logits_NV

    def _step(self, rows: int, *, draws: bool) -> Tensor:
        slot_N, position_N, token_N = self._slot_N[:rows], self._position_N[:rows], self._token_N[:rows]
        keys_LSKTD, values_LSKTD = self._slots.keys_LSKTD, self._slots.values_LSKTD

        def attend(layer: int, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> Tensor:
            return attend_slots(q_NHD, k_NKD, v_NKD, keys_LSKTD[layer], values_LSKTD[layer], position_N, slot_N)

        logits_NV = self._decoder.logits(self._decoder.forward(token_N, position_N, attend))
        if draws:
            self._sampler.draw(logits_NV, token_N, position_N)
        return logits_NV


def over_packed(pieces: Sequence[Piece], decoder: Decoder) -> Attend:
    """Attention for the tokens of these pieces, by one kernel for all that begin at the beginning.

    Those that do not must come first.
    """
    shape, dtype, device = decoder.shape, decoder.dtype, decoder.device
    later = [piece for piece in pieces if piece.start]
    fresh = pieces[len(later) :]
    before = sum(piece.end - piece.start for piece in later)
    sizes = [piece.end for piece in fresh]
    bounds = [0, *np.cumsum(sizes).tolist()]
    keys_LNKD, values_LNKD = torch.empty(
        (2, shape.layers, bounds[-1], shape.kv_heads, shape.head), dtype=dtype, device=device
    ).unbind()
    parts = []
    for piece, start in zip(fresh, bounds, strict=False):
        if piece.whole:
            piece.prefix.keep(
                *(each[:, start : start + piece.end].transpose(1, 2) for each in (keys_LNKD, values_LNKD))
            )
        else:  # the rest of it comes later, and needs room beside this
            piece.prefix.make_room(shape, dtype, device)
            parts.append((piece, slice(start, start + piece.end)))
    bounds_B = torch.tensor(bounds, dtype=torch.int32, device=device)
    over_later = over_prefixes(later, decoder)

    def attend(layer: int, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> Tensor:
        seen = [over_later(layer, q_NHD[:before], k_NKD[:before], v_NKD[:before])] if later else []
        if fresh:
            q_NHD, k_NKD, v_NKD = q_NHD[before:], k_NKD[before:], v_NKD[before:]
            keys_LNKD[layer], values_LNKD[layer] = k_NKD, v_NKD
            for piece, place in parts:
                piece.store(layer, k_NKD[place], v_NKD[place])
            seen.append(
                torch.ops.aten._flash_attention_forward(
                    q_NHD, k_NKD, v_NKD, bounds_B, bounds_B, max(sizes), max(sizes), 0.0, True, False
                )[0]
            )
        return torch.cat(seen)

    return attend


def fill_scattered(slots: Slots, places: Mapping[Prefix, Sequence[int]]) -> None:
    """Begin each of these slots with its prefix, by one kernel for all."""
    copies = [(*prefix.kept, len(prefix.tokens), slots.place(slot)) for prefix, some in places.items() for slot in some]
    copy_prefixes(copies, slots.keys_LSKTD, slots.values_LSKTD)


def _special(samplings: Sequence[Sampling]) -> bool:
    """Whether somebody wants more than a temperature."""
    return any(each.truncated or each.bias for each in samplings)


def _rows(count: int) -> int:
    """The next number there is a graph for: powers of two, and halfway between them."""
    power = 1 << max(count - 1, 0).bit_length()
    return power * 3 // 4 if power >= 64 and count <= power * 3 // 4 else power


def _fill(target: Tensor, values: Sequence[float]) -> None:
    target[: len(values)].copy_(torch.tensor(values, dtype=target.dtype).pin_memory(), non_blocking=True)
