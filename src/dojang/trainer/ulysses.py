"""Long rows spread over ranks (DeepSpeed-Ulysses, arXiv 2309.14509).

Each rank reads its part of a row's tokens. Only attention needs them all: for the time of it, ranks trade their tokens'
heads, so that each has all tokens of some heads.

    [N / ranks, H, D]  ->  [N, H / ranks, D]  -> attention ->  [N, H / ranks, D]  ->  [N / ranks, H, D]
"""

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from dojang.core.errors import ConfigError
from dojang.trainer.packed_attention import Attention
from dojang.trainer.packing import MicroBatch
from dojang.trainer.process_group import Ranks

__all__ = ["check_heads", "part_of"]


def part_of(batch: MicroBatch, ranks: Ranks) -> MicroBatch:
    """This rank's part: fewer tokens to read, and log-probs of some of the tokens learned from. `spread` joins them."""
    if ranks.sequence == 1:
        return batch
    tokens = len(batch.token_N)
    size = -(-tokens // ranks.sequence)
    start = ranks.sequence_rank * size
    mine_M = (batch.source_M >= start) & (batch.source_M < start + size)

    def cut(each_N: Tensor) -> Tensor:
        return pad(each_N, (0, size * ranks.sequence - tokens))[start : start + size]

    def join(value_m: Tensor) -> Tensor:
        whole_M = value_m.new_zeros(len(mine_M)).masked_scatter(mine_M, value_m)
        joined: Tensor = _Joined.apply(whole_M, ranks.sequence_group)  # type: ignore[no-untyped-call]
        return joined

    return replace(
        batch,
        token_N=cut(batch.token_N),
        position_N=cut(batch.position_N),
        plan=_Traded(batch.plan, tokens, ranks),
        source_M=batch.source_M[mine_M] - start,
        target_M=batch.target_M[mine_M],
        join=join,
    )


def check_heads(heads: int, kv_heads: int, ranks: int) -> None:
    """ConfigError if heads cannot be divided among so many."""
    if heads % ranks or (kv_heads % ranks and ranks % kv_heads):
        raise ConfigError(
            f"train.sequence_parallel={ranks} cannot divide the model's {heads} attention heads, {kv_heads} of them "
            f"with "
            "keys of their own; take a number that divides the first, and divides the second or is a multiple of it"
        )


class _Traded:
    """A plan for rows whose tokens are spread over ranks."""

    def __init__(self, plan: Attention, tokens: int, ranks: Ranks) -> None:
        self._plan, self._tokens, self._ranks = plan, tokens, ranks

    def attend(self, q_nHD: Tensor, k_nKD: Tensor, v_nKD: Tensor, scale: float) -> Tensor:
        """What each of this rank's tokens sees, [n, H, D]."""
        ranks, size = self._ranks.sequence, len(q_nHD)
        if k_nKD.shape[1] < ranks:  # some ranks' heads have the same keys
            k_nKD, v_nKD = (each.repeat_interleave(ranks // each.shape[1], 1) for each in (k_nKD, v_nKD))
        apart = [each.view(size, ranks, -1, each.shape[-1]) for each in (q_nHD, k_nKD, v_nKD)]
        traded_RnHD = self._trade(torch.cat(apart, 2).transpose(0, 1))
        whole_NHD = traded_RnHD.flatten(0, 1)[: self._tokens]
        q_NHD, k_NKD, v_NKD = whole_NHD.split_with_sizes([each.shape[2] for each in apart], 1)
        seen_NHD = self._plan.attend(q_NHD, k_NKD, v_NKD, scale)
        padded_NHD = pad(seen_NHD, (0, 0, 0, 0, 0, ranks * size - self._tokens))
        seen_RnHD = self._trade(padded_NHD.view(ranks, size, *seen_NHD.shape[1:]))
        return seen_RnHD.transpose(0, 1).flatten(1, 2)

    def _trade(self, x_R: Tensor) -> Tensor:
        traded: Tensor = _Trade.apply(x_R, self._ranks.sequence_group)  # type: ignore[no-untyped-call]
        return traded


class _Trade(torch.autograd.Function):
    """x[r] goes to rank r; what comes back is in the order of ranks. Gradients go the same way back."""

    @staticmethod
    def forward(context: Any, x_R: Tensor, group: Any) -> Tensor:
        context.group = group
        return _traded(x_R, group)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _traded(gradients[0], context.group), None


class _Joined(torch.autograd.Function):
    """The sum over ranks, of whom only one has a number other than 0. All of them make the same loss of it, so that
    each keeps the gradient of its own."""

    @staticmethod
    def forward(context: Any, x_M: Tensor, group: Any) -> Tensor:
        joined_M = x_M.clone()
        dist.all_reduce(joined_M, group=group)
        return joined_M

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def _traded(x_R: Tensor, group: Any) -> Tensor:
    traded_R = torch.empty_like(x_R, memory_format=torch.contiguous_format)
    dist.all_to_all_single(traded_R, x_R.contiguous(), group=group)
    return traded_R
