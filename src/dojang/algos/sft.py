"""Supervised fine-tuning (SFT): cross-entropy of given completions, loss_t = -log pi(y_t), on completion tokens only.

The batch consists of data rows instead of rollouts; packing, optimizer, schedule, checkpoints and evaluations are those
of any other run. Its checkpoint is the warm start of an RL run.
"""

from collections.abc import Sequence
from typing import Literal

from dojang.algos.section import PlainAlgorithmSection
from dojang.protocols import LossAggregation, Requirements, TokenBatch, TokenLoss
from dojang.types import Group

__all__ = ["Sft", "SftConfig"]


class SftConfig(PlainAlgorithmSection):
    """Supervised fine-tuning on rows of a prompt and a completion."""

    name: Literal["sft"] = "sft"
    completion: str = "completion"
    """Column of the data row with the completion to learn (data.name=prompt_completion sets it itself)."""
    loss_aggregation: LossAggregation = "tokens"
    """Loss aggregation. tokens: mean over all completion tokens of the batch. sequences: mean over rows of each row's
    token mean. constant: mean over rows of each row's sum divided by rollout.max_tokens."""

    def make(self, max_tokens: int) -> "Sft":
        """Makes the algorithm with these settings."""
        return Sft(self)


class Sft:
    """The Algorithm of supervised fine-tuning."""

    max_resample_rounds = 0
    requirements = Requirements()

    def __init__(self, config: SftConfig) -> None:
        self.config = config

    @property
    def loss_aggregation(self) -> LossAggregation:
        return self.config.loss_aggregation

    def advantages(self, groups: Sequence[Group]) -> list[tuple[float, ...]]:
        """Every row has advantage 1."""
        return [(1.0,) * len(group.samples) for group in groups]

    def loss(self, batch: TokenBatch) -> TokenLoss:
        import torch  # imported here, so that reading a configuration loads no torch

        return TokenLoss(loss_BT=torch.where(batch.mask_BT, -batch.logp_BT, 0.0), figures={})
