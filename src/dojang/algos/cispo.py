"""CISPO: the clipped importance ratio is a weight, so every token keeps a gradient (arXiv 2506.13585, 2510.13786).

L_t = -sg(clip(r_t, floor, cap)) A log p_t          sg: no gradient
"""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dojang.algos.policy_gradient import PolicyGradientConfig
from dojang.algos.safe_exp import safe_exp
from dojang.protocols import TokenBatch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["CispoConfig"]


class CispoConfig(PolicyGradientConfig):
    """Clipped importance sampling policy optimization."""

    name: Literal["cispo"] = "cispo"
    cap: float = Field(default=5.0, gt=1)
    """Upper clip of the importance weight."""
    floor: float = Field(default=0.0, ge=0, lt=1)
    """Lower clip of the importance weight."""

    def surrogate(self, batch: TokenBatch, delta_BT: "Tensor") -> "tuple[Tensor, Tensor]":
        import torch

        ratio_BT = safe_exp(delta_BT.detach())
        weight_BT = ratio_BT.clamp(self.floor, self.cap)
        logp_BT = torch.where(batch.mask_BT, batch.logp_BT, 0.0)
        return -weight_BT * batch.advantage_BT * logp_BT, weight_BT != ratio_BT
