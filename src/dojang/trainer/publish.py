"""Publishes a model's weights: in full, with LoRA adapters merged, or as LoRA factors.

With adapters no second model is made. The base weights are frozen, so a published version refers to the trainer's own,
next to a copy of the factors, and engines merge each weight while they read it.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel

from dojang.core.lazy_weights import joined
from dojang.protocols import Factors, WeightStore
from dojang.trainer.config import TrainConfig
from dojang.trainer.fsdp import full_tensor
from dojang.trainer.lora import Adapters
from dojang.trainer.process_group import ProcessGroup

__all__ = ["WeightPublisher"]


class WeightPublisher:
    """Publishes the weights of one model. All ranks must call `publish`; the first one holds the weights."""

    def __init__(
        self,
        model: PreTrainedModel,
        adapters: Adapters | None,
        weights: WeightStore,
        config: TrainConfig,
        compute: torch.dtype,
        ranks: ProcessGroup,
    ) -> None:
        self._model, self._adapters, self._weights = model, adapters, weights
        self._factors = config.lora is not None and config.lora.publish == "factors"
        self._compute, self._ranks = compute, ranks
        self._has_base = False
        """Whether the store has the base weights that factors are added to."""

    @torch.no_grad()
    def publish(self, version: int) -> None:
        tensors, factors = self._weights_and_factors()
        if not self._ranks.first:
            return
        if self._model.device.type == "cuda":  # engines read what was made here on other CUDA streams
            torch.cuda.current_stream(self._model.device).synchronize()
        self._weights.publish(version, tensors, factors)

    def version_bytes(self) -> int:
        """Bytes of a published version, without what all versions share."""
        if self._adapters is None:
            return sum(each.numel() for each in self._model.parameters()) * self._compute.itemsize
        return sum(each.numel() * each.itemsize for each in self._model.parameters() if each.requires_grad)

    def shared_bytes(self) -> int:
        """Bytes that will still be allocated for all versions together: gathered base weights, and a merged weight
        while an engine reads it."""
        return 0 if self._adapters is None else self._adapters.missing_base_bytes() + self._adapters.merge_bytes()

    def _weights_and_factors(self) -> tuple[Mapping[str, Tensor], Factors]:
        adapters, keep = self._adapters, self._ranks.first
        if adapters is None:
            return self._full_weights(), {}
        if not self._factors:
            return adapters.merged(keep=keep), {}
        base = {} if self._has_base else adapters.base(keep=keep)
        self._has_base = True
        return base, {name: (b, a) for name, b, a in adapters.factors()}

    def _full_weights(self) -> Mapping[str, Tensor]:
        """The model's weights, or copies gathered from the ranks: one by one, so that no rank but the first holds two
        full weights at a time, and the first only in the compute dtype."""
        named = ((name, each.detach()) for name, each in self._model.named_parameters())
        if self._ranks.world == 1:
            return dict(named)
        gathered: dict[str, Tensor] = {}
        for name, each in named:
            whole = full_tensor(each)
            if self._ranks.first:  # a copy already, which the store need not copy again
                gathered[name] = whole.to(self._compute, copy=whole is each)
        return joined(gathered)
