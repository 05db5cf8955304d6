"""Local teacher of on-policy distillation: a frozen model that scores the student's tokens."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel

from dojang.trainer.forward import Scorer, check_packed
from dojang.trainer.fsdp import shard
from dojang.trainer.optimizer import module_on_device
from dojang.trainer.packed_attention import use_packed_attention
from dojang.trainer.process_group import SINGLE_PROCESS, ProcessGroup
from dojang.trainer.ulysses import attention_heads, check_heads

__all__ = ["Teacher"]


class Teacher:
    """A frozen model, sharded over the ranks like the policy."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        temperature: float,
        compute: torch.dtype,
        float32_head: bool = False,
        offload: bool = False,
        ranks: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        """With `offload`, the weights stay in CPU memory while the teacher is idle."""
        use_packed_attention(model)
        check_packed(model)
        check_heads(*attention_heads(model.config), ranks.sequence)
        self._scorer = Scorer(model, temperature=temperature, compute=compute, float32_head=float32_head)
        self._visits = offload and ranks.world == 1
        if ranks.world > 1:
            shard(self._scorer, ranks, compute, offload=offload)

    @contextmanager
    def loaded(self, device: torch.device) -> Iterator[Scorer]:
        """The model on the device, without gradients."""
        with torch.no_grad(), module_on_device(device, self._scorer, offload=self._visits):
            yield self._scorer
