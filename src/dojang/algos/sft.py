"""Supervised fine-tuning (SFT): the cross-entropy of given completions, loss_t = -log pi(y_t), completion tokens alone.

The batch is made of rows instead of rollouts; packing, optimizer, schedule, checkpoints and evaluations are those of
any other run. Its checkpoint is the warm start of a run that samples.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dojang.core.section import Section
from dojang.protocols import Average, TokenBatch, TokenLoss
from dojang.types import Group, Metrics

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Sft", "SftConfig"]


class SftConfig(Section):
    """Supervised fine-tuning on rows of a prompt and a completion."""

    name: Literal["sft"] = "sft"
    completion: str = "completion"
    """Column of the data row with the completion to learn (data.name=prompt_completion sets it itself)."""
    loss_aggregation: Average = "tokens"
    """tokens: the mean over all completion tokens of the batch. sequences: the mean of each row's mean. constant: the
    mean of each row's sum, divided by rollout.max_tokens."""

    # Settings that other algorithms have and a loss on given completions has no use for.
    advantage: ClassVar[str] = ""
    kl_coef: ClassVar[float] = 0.0
    kl_in_reward: ClassVar[float] = 0.0
    old_logprobs: ClassVar[str] = "behaviour"
    corrections: ClassVar[tuple[()]] = ()
    reward_weights: ClassVar[Mapping[str, Any]] = {}

    def make(self, longest: int) -> "Sft":
        """The algorithm with these settings."""
        return Sft(self)


class Sft:
    """The Algorithm of supervised fine-tuning."""

    max_resample_rounds = 0
    needs_reference = needs_old = needs_limit = needs_critic = trains_zero_advantage = False

    def __init__(self, config: SftConfig) -> None:
        self.config = config

    @property
    def loss_aggregation(self) -> Average:
        return self.config.loss_aggregation

    def advantages(self, groups: Sequence[Group]) -> list[tuple[float, ...]]:
        """All rows count alike."""
        return [(1.0,) * len(group.samples) for group in groups]

    def loss(self, batch: TokenBatch) -> TokenLoss:
        import torch  # here, so that reading a configuration loads no torch

        return TokenLoss(loss_BT=torch.where(batch.mask_BT, -batch.logp_BT, 0.0), figures={})

    def limit(self, delta_N: "Tensor", advantage_N: "Tensor") -> tuple[float, Metrics]:
        raise NotImplementedError("SFT has no trust region")

    def trace(self, groups: Sequence[Group]) -> list[Group]:
        raise NotImplementedError("SFT has no critic")

    def value_loss(
        self, value_BT: "Tensor", old_value_BT: "Tensor", return_BT: "Tensor", mask_BT: "Tensor"
    ) -> TokenLoss:
        raise NotImplementedError("SFT has no critic")
