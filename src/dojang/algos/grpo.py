"""The clipped surrogate of PPO, and the algorithms that are made of it and a way to give credit.

L_t = -min(r_t A, clip(r_t, 1 - low, 1 + high) A)
with a dual clip c, where A < 0:  L_t = min(-c A, the above)
"""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dojang.algos import advantages
from dojang.algos.policy_gradient import PolicyConfig
from dojang.algos.safe_exp import growth
from dojang.protocols import Average, TokenBatch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "ClipConfig",
    "DapoConfig",
    "DrGrpoConfig",
    "GdpoConfig",
    "GrpoConfig",
    "MaxRlConfig",
    "ReinforceBaselineConfig",
    "ReinforceConfig",
    "RlooConfig",
]


class ClipConfig(PolicyConfig):
    """What the clipped surrogate has to be told."""

    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """How far the probability ratio may fall before its gradient is cut."""
    clip_high: float = Field(default=0.2, gt=0)
    """How far the probability ratio may rise before its gradient is cut."""
    dual_clip: float | None = Field(default=None, gt=1)
    """The most times its advantage that a bad token may cost, however likely it has become."""

    def surrogate(self, batch: TokenBatch, delta_BT: "Tensor") -> "tuple[Tensor, Tensor]":
        import torch

        ratio_BT, advantage_BT = growth(delta_BT), batch.advantage_BT
        plain_BT = -ratio_BT * advantage_BT
        clipped_BT = -ratio_BT.clamp(1 - self.clip_low, 1 + self.clip_high) * advantage_BT
        loss_BT = torch.maximum(plain_BT, clipped_BT)
        if self.dual_clip is not None:
            worst_BT = -self.dual_clip * advantage_BT
            loss_BT = torch.where(advantage_BT < 0, torch.minimum(loss_BT, worst_BT), loss_BT)
        return loss_BT, loss_BT != plain_BT


class GrpoConfig(ClipConfig):
    """Group-relative policy optimization (arXiv 2402.03300), averaged over tokens as its later users do."""

    name: Literal["grpo"] = "grpo"


class DrGrpoConfig(ClipConfig):
    """GRPO done right (arXiv 2503.20783): neither hard problems nor long answers weigh more."""

    name: Literal["dr_grpo"] = "dr_grpo"
    advantage: advantages.Estimator = "mean"
    loss_aggregation: Average = "constant"


class RlooConfig(ClipConfig):
    """REINFORCE, leave one out (arXiv 2402.14740)."""

    name: Literal["rloo"] = "rloo"
    advantage: advantages.Estimator = "rloo"


class ReinforceConfig(ClipConfig):
    """REINFORCE++ (arXiv 2501.03262): compared with the whole batch."""

    name: Literal["reinforce++"] = "reinforce++"
    advantage: advantages.Estimator = "reinforce++"


class ReinforceBaselineConfig(ClipConfig):
    """REINFORCE++ with the group's mean as baseline (arXiv 2501.03262)."""

    name: Literal["reinforce++-baseline"] = "reinforce++-baseline"
    advantage: advantages.Estimator = "reinforce++-baseline"


class MaxRlConfig(ClipConfig):
    """Maximum-likelihood reinforcement learning (arXiv 2602.02710): hard problems weigh more."""

    name: Literal["maxrl"] = "maxrl"
    advantage: advantages.Estimator = "maxrl"


class GdpoConfig(ClipConfig):
    """Group reward-decoupled normalisation (arXiv 2601.05242): each part of a reward is compared by itself."""

    name: Literal["gdpo"] = "gdpo"
    advantage: advantages.Estimator = "gdpo"


class DapoConfig(ClipConfig):
    """Decoupled clip and dynamic sampling (arXiv 2503.14476)."""

    name: Literal["dapo"] = "dapo"
    overlong_buffer_fraction: float = Field(default=0.2, ge=0, le=1)
    max_resample_rounds: int = Field(default=3, ge=0)
    clip_high: float = Field(default=0.28, gt=0)
