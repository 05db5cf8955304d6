"""SAPO: a soft gate instead of a clip (arXiv 2511.20347).

L_t = -(4 / tau) sigmoid(tau (r_t - 1)) A          tau differs for A > 0 and A <= 0
"""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dojang.algos.policy_gradient import PolicyGradientConfig
from dojang.algos.safe_exp import safe_exp
from dojang.protocols import LossAggregation, TokenBatch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["SapoConfig"]


class SapoConfig(PolicyGradientConfig):
    """Soft adaptive policy optimization."""

    name: Literal["sapo"] = "sapo"
    loss_aggregation: LossAggregation = "sequences"
    tau_good: float = Field(default=1.0, gt=0)
    """Temperature of the gate where A > 0: higher closes it faster as the ratio leaves 1."""
    tau_bad: float = Field(default=1.05, gt=0)
    """Temperature of the gate where A <= 0."""

    def surrogate(self, batch: TokenBatch, delta_BT: "Tensor") -> "tuple[Tensor, Tensor]":
        import torch

        good_BT = batch.advantage_BT > 0
        tau_BT = torch.where(good_BT, delta_BT.new_tensor(self.tau_good), delta_BT.new_tensor(self.tau_bad))
        gate_BT = torch.sigmoid(tau_BT * (safe_exp(delta_BT) - 1)) * 4 / tau_BT
        return -gate_BT * batch.advantage_BT, torch.zeros_like(good_BT)
