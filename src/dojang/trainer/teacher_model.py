"""A local teacher for on-policy distillation: a frozen model of any size that scores the student's tokens."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel

from dojang.trainer.forward import Scorer, check_packed
from dojang.trainer.fsdp import shard
from dojang.trainer.optimizer import visiting
from dojang.trainer.packed_attention import see_packed
from dojang.trainer.process_group import ALONE, Ranks
from dojang.trainer.ulysses import check_heads

__all__ = ["Teacher"]


class Teacher:
    """A frozen model, sharded over the ranks like the policy where there are several."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        temperature: float,
        compute: torch.dtype,
        float32_head: bool = False,
        offload: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        """With `offload`, the weights are kept in the processor's memory while the teacher is not asked."""
        see_packed(model)
        check_packed(model)
        check_heads(model.config.num_attention_heads, model.config.num_key_value_heads, ranks.sequence)
        self._scorer = Scorer(model, temperature=temperature, compute=compute, float32_head=float32_head)
        self._visits = offload and ranks.world == 1
        if ranks.world > 1:
            shard(self._scorer, ranks, compute, away=offload)

    @contextmanager
    def loaded(self, device: torch.device) -> Iterator[Scorer]:
        """The model on the device, without gradients."""
        with torch.no_grad(), visiting(device, self._scorer, away=self._visits):
            yield self._scorer
