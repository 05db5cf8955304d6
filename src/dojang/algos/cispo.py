"""CISPO: the clipped ratio is a weight, so that every token keeps a gradient (arXiv 2506.13585, 2510.13786).

L_t = -sg(clip(r_t, floor, cap)) A log p_t          sg: no gradient
"""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dojang.algos.policy_gradient import PolicyConfig
from dojang.algos.safe_exp import growth
from dojang.protocols import TokenBatch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["CispoConfig"]


class CispoConfig(PolicyConfig):
    """Clipped importance sampling policy optimization."""

    name: Literal["cispo"] = "cispo"
    cap: float = Field(default=5.0, gt=1)
    """No token counts more than so many times."""
    floor: float = Field(default=0.0, ge=0, lt=1)
    """Nor less than so many times."""

    def surrogate(self, batch: TokenBatch, delta_BT: "Tensor") -> "tuple[Tensor, Tensor]":
        import torch

        ratio_BT = growth(delta_BT.detach())
        weight_BT = ratio_BT.clamp(self.floor, self.cap)
        logp_BT = torch.where(batch.mask_BT, batch.logp_BT, 0.0)
        return -weight_BT * batch.advantage_BT * logp_BT, weight_BT != ratio_BT
