"""DPPO-TV: a trust region on the change of a token's probability, not on its ratio (arXiv 2602.04879).

L_t = -sg(min(r_t, cap)) A log p_t        0 where A > 0 and p_t - mu_t > high, or A < 0 and p_t - mu_t < -low
      + pull (log r_t)^2
"""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dojang.algos.policy_gradient import PolicyGradientConfig
from dojang.algos.safe_exp import safe_exp
from dojang.protocols import TokenBatch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["DppoConfig"]


class DppoConfig(PolicyGradientConfig):
    """Divergence proximal policy optimization, by total variation."""

    name: Literal["dppo_tv"] = "dppo_tv"
    low: float = Field(default=0.2, gt=0, le=1)
    """Trust region where A < 0: largest fall of a token's probability before its gradient is cut."""
    high: float = Field(default=0.2, gt=0, le=1)
    """Trust region where A > 0: largest rise of a token's probability before its gradient is cut."""
    cap: float = Field(default=20.0, gt=1)
    """Upper clip of the importance weight."""
    pull: float = Field(default=0.0, ge=0)
    """Coefficient of the squared log-ratio penalty."""

    @property
    def trains_zero_advantage(self) -> bool:
        return self.pull > 0 or super().trains_zero_advantage

    def surrogate(self, batch: TokenBatch, delta_BT: "Tensor") -> "tuple[Tensor, Tensor]":
        import torch

        mask_BT, advantage_BT = batch.mask_BT, batch.advantage_BT
        logp_BT = torch.where(mask_BT, batch.logp_BT, 0.0)
        with torch.no_grad():
            moved_BT = logp_BT.exp() - torch.where(mask_BT, batch.old_logp_BT, 0.0).exp()
            cut_BT = ((advantage_BT > 0) & (moved_BT > self.high)) | ((advantage_BT < 0) & (moved_BT < -self.low))
            weight_BT = torch.where(cut_BT, 0.0, safe_exp(delta_BT).clamp(max=self.cap))
        return -weight_BT * advantage_BT * logp_BT + self.pull * delta_BT.square(), cut_BT
