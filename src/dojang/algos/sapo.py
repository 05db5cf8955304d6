"""SAPO: a soft gate instead of a clip (arXiv 2511.20347).

L_t = -(4 / tau) sigmoid(tau (r_t - 1)) A          tau differs for good and bad answers
"""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dojang.algos.policy_gradient import PolicyConfig
from dojang.algos.safe_exp import growth
from dojang.protocols import Average, TokenBatch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["SapoConfig"]


class SapoConfig(PolicyConfig):
    """Soft adaptive policy optimization."""

    name: Literal["sapo"] = "sapo"
    loss_aggregation: Average = "sequences"
    tau_good: float = Field(default=1.0, gt=0)
    """How fast a token of a good answer stops to matter as its ratio leaves 1."""
    tau_bad: float = Field(default=1.05, gt=0)
    """Likewise of a bad one."""

    def surrogate(self, batch: TokenBatch, delta_BT: "Tensor") -> "tuple[Tensor, Tensor]":
        import torch

        good_BT = batch.advantage_BT > 0
        tau_BT = torch.where(good_BT, delta_BT.new_tensor(self.tau_good), delta_BT.new_tensor(self.tau_bad))
        gate_BT = torch.sigmoid(tau_BT * (growth(delta_BT) - 1)) * 4 / tau_BT
        return -gate_BT * batch.advantage_BT, torch.zeros_like(good_BT)
