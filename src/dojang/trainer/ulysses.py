"""Sequence parallelism: long rows sharded over ranks (DeepSpeed-Ulysses, arXiv 2309.14509).

Each rank reads its part of a row's tokens. Only attention needs all of them: an all-to-all before it gives each rank
all tokens of some heads, and a second one after it reverses that.

    [N / ranks, H, D]  ->  [N, H / ranks, D]  -> attention ->  [N, H / ranks, D]  ->  [N / ranks, H, D]
"""

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from dojang.core.errors import ConfigError
from dojang.trainer.packed_attention import AttentionPlan
from dojang.trainer.packing import MicroBatch
from dojang.trainer.process_group import ProcessGroup

__all__ = ["attention_heads", "check_heads", "shard_sequence"]


def shard_sequence(batch: MicroBatch, ranks: ProcessGroup) -> MicroBatch:
    """This rank's part of a micro-batch: some input tokens and some trained tokens. `scatter` joins the latter."""
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
        joined: Tensor = _AllReduceSum.apply(whole_M, ranks.sequence_group)  # type: ignore[no-untyped-call]
        return joined

    return replace(
        batch,
        token_N=cut(batch.token_N),
        position_N=cut(batch.position_N),
        plan=_UlyssesAttention(batch.plan, tokens, ranks),
        source_M=batch.source_M[mine_M] - start,
        target_M=batch.target_M[mine_M],
        join=join,
    )


def attention_heads(config: Any) -> tuple[int, int]:
    """Number of attention heads and of key-value heads; not every configuration names the latter."""
    heads: int = getattr(config, "num_attention_heads", None) or 1
    return heads, getattr(config, "num_key_value_heads", None) or heads


def check_heads(heads: int, kv_heads: int, ranks: int) -> None:
    """Raises ConfigError if the attention heads cannot be divided among `ranks`."""
    if heads % ranks or (kv_heads % ranks and ranks % kv_heads):
        raise ConfigError(
            f"train.sequence_parallel={ranks} cannot divide the model's {heads} attention heads with {kv_heads} "
            "key-value heads; use a number that divides the first, and divides the second or is a multiple of it"
        )


class _UlyssesAttention:
    """Attention of rows whose tokens are sharded over ranks."""

    def __init__(self, plan: AttentionPlan, tokens: int, ranks: ProcessGroup) -> None:
        self._plan, self._tokens, self._ranks = plan, tokens, ranks

    def attend(
        self, q_nHD: Tensor, k_nKD: Tensor, v_nKD: Tensor, scale: float, window: int = 0, softcap: float = 0.0
    ) -> Tensor:
        """Attention output of this rank's tokens, [n, H, D]."""
        ranks, size = self._ranks.sequence, len(q_nHD)
        if k_nKD.shape[1] < ranks:  # several ranks share a key-value head
            k_nKD, v_nKD = (each.repeat_interleave(ranks // each.shape[1], 1) for each in (k_nKD, v_nKD))
        apart = [each.view(size, ranks, -1, each.shape[-1]) for each in (q_nHD, k_nKD, v_nKD)]
        traded_RnHD = self._exchange(torch.cat(apart, 2).transpose(0, 1))
        whole_NHD = traded_RnHD.flatten(0, 1)[: self._tokens]
        q_NHD, k_NKD, v_NKD = whole_NHD.split_with_sizes([each.shape[2] for each in apart], 1)
        seen_NHD = self._plan.attend(q_NHD, k_NKD, v_NKD, scale, window, softcap)
        padded_NHD = pad(seen_NHD, (0, 0, 0, 0, 0, ranks * size - self._tokens))
        seen_RnHD = self._exchange(padded_NHD.view(ranks, size, *seen_NHD.shape[1:]))
        return seen_RnHD.transpose(0, 1).flatten(1, 2)

    def _exchange(self, x_R: Tensor) -> Tensor:
        traded: Tensor = _AllToAll.apply(x_R, self._ranks.sequence_group)  # type: ignore[no-untyped-call]
        return traded


class _AllToAll(torch.autograd.Function):
    """All-to-all: sends x[r] to rank r; receives in rank order. Gradients take the reverse way."""

    @staticmethod
    def forward(context: Any, x_R: Tensor, group: Any) -> Tensor:
        context.group = group
        return _all_to_all(x_R, group)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _all_to_all(gradients[0], context.group), None


class _AllReduceSum(torch.autograd.Function):
    """Sum over ranks, of which only one has a non-zero value. All ranks compute the same loss from it, so each keeps
    the gradient of the value it contributed."""

    @staticmethod
    def forward(context: Any, x_M: Tensor, group: Any) -> Tensor:
        joined_M = x_M.clone()
        dist.all_reduce(joined_M, group=group)
        return joined_M

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def _all_to_all(x_R: Tensor, group: Any) -> Tensor:
    traded_R = torch.empty_like(x_R, memory_format=torch.contiguous_format)
    dist.all_to_all_single(traded_R, x_R.contiguous(), group=group)
    return traded_R
