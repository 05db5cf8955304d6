"""GRPO: group-relative advantages and a clipped surrogate, with an optional KL term.

    A_i  = (R_i - mean R) / (std R + 1e-6)          std with n - 1; without it when `scale` is none
    L_t  = -min(r_t A_i, clip(r_t, 1 - low, 1 + high) A_i) + kl * k3_t
    k3_t = exp(ref_t - logp_t) - (ref_t - logp_t) - 1

The KL term is a penalty, so it is added to the loss. Nothing here divides by a token count: the trainer
normalises over the whole optimiser step.
"""

import statistics
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dojang.protocols import TokenBatch, TokenLoss
from dojang.settings import Section
from dojang.types import Group

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Grpo", "GrpoConfig"]


class GrpoConfig(Section):
    """Group-relative policy optimisation."""

    name: Literal["grpo"] = "grpo"
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """How far the probability ratio may fall before its gradient is cut."""
    clip_high: float = Field(default=0.2, gt=0)
    """How far the probability ratio may rise before its gradient is cut."""
    kl: float = Field(default=0.0, ge=0)
    """Weight of the k3 KL penalty to the initial model; 0 keeps no reference model."""
    scale: Literal["std", "none"] = "std"
    """Divide advantages by the group's standard deviation, or not."""

    def make(self) -> "Grpo":
        """The algorithm with these settings."""
        return Grpo(self)


class Grpo:
    """The Algorithm of this file."""

    def __init__(self, config: GrpoConfig) -> None:
        self.config = config

    @property
    def needs_reference(self) -> bool:
        return self.config.kl > 0

    def advantages(self, group: Group) -> tuple[float, ...]:
        rewards = [sample.reward for sample in group.samples]
        if len(set(rewards)) < 2:  # exactly zero, where the arithmetic below might leave a rounding error
            return (0.0,) * len(rewards)
        mean = statistics.fmean(rewards)
        scale = statistics.stdev(rewards) + 1e-6 if self.config.scale == "std" else 1.0
        return tuple((reward - mean) / scale for reward in rewards)

    def loss(self, batch: TokenBatch) -> TokenLoss:
        import torch  # here, so that reading a configuration loads no torch

        mask_BT = batch.mask_BT
        # Outside the mask both log-probs are meaningless; a zero difference keeps exp() finite there.
        delta_BT = torch.where(mask_BT, batch.logp_BT - batch.old_logp_BT, 0.0)
        ratio_BT = delta_BT.exp()
        clipped_BT = ratio_BT.clamp(1 - self.config.clip_low, 1 + self.config.clip_high)
        advantage_B1 = batch.advantage_B[:, None]
        surrogate_BT = torch.minimum(ratio_BT * advantage_B1, clipped_BT * advantage_B1)
        figures: dict[str, Tensor] = {
            "actor/pg_loss": -surrogate_BT,
            "actor/ppo_kl": -delta_BT,
            "actor/pg_clipfrac": (surrogate_BT < ratio_BT * advantage_B1).to(ratio_BT.dtype),
        }
        loss_BT = -surrogate_BT
        if batch.ref_logp_BT is not None:
            gap_BT = torch.where(mask_BT, batch.ref_logp_BT - batch.logp_BT, 0.0)
            k3_BT = gap_BT.exp() - gap_BT - 1
            figures["actor/kl_loss"] = k3_BT
            loss_BT = loss_BT + self.config.kl * k3_BT
        return TokenLoss(loss_BT=loss_BT * mask_BT, figures=figures)
