"""The clipped surrogate of PPO, and the algorithms that combine it with an advantage estimator.

L_t = -min(r_t A, clip(r_t, 1 - low, 1 + high) A)
with a dual clip c, where A < 0:  L_t = min(-c A, the above)
"""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dojang.algos import advantages
from dojang.algos.policy_gradient import PolicyGradientConfig
from dojang.algos.safe_exp import safe_exp
from dojang.protocols import LossAggregation, TokenBatch

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


class ClipConfig(PolicyGradientConfig):
    """Settings of the clipped surrogate."""

    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """Lower clip of the importance ratio: clipped at 1 - clip_low."""
    clip_high: float = Field(default=0.2, gt=0)
    """Upper clip of the importance ratio: clipped at 1 + clip_high."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Dual clip: where A < 0, the loss of a token is at most -dual_clip * A."""

    def surrogate(self, batch: TokenBatch, delta_BT: "Tensor") -> "tuple[Tensor, Tensor]":
        import torch

        ratio_BT, advantage_BT = safe_exp(delta_BT), batch.advantage_BT
        plain_BT = -ratio_BT * advantage_BT
        clipped_BT = -ratio_BT.clamp(1 - self.clip_low, 1 + self.clip_high) * advantage_BT
        loss_BT = torch.maximum(plain_BT, clipped_BT)
        if self.dual_clip is not None:
            worst_BT = -self.dual_clip * advantage_BT
            loss_BT = torch.where(advantage_BT < 0, torch.minimum(loss_BT, worst_BT), loss_BT)
        return loss_BT, loss_BT != plain_BT


class GrpoConfig(ClipConfig):
    """Group-relative policy optimization (arXiv 2402.03300), with the token-mean loss of later implementations."""

    name: Literal["grpo"] = "grpo"


class DrGrpoConfig(ClipConfig):
    """GRPO done right (arXiv 2503.20783): no bias towards hard problems or long answers."""

    name: Literal["dr_grpo"] = "dr_grpo"
    advantage: advantages.Estimator = "mean"
    loss_aggregation: LossAggregation = "constant"


class RlooConfig(ClipConfig):
    """REINFORCE leave-one-out (arXiv 2402.14740)."""

    name: Literal["rloo"] = "rloo"
    advantage: advantages.Estimator = "rloo"


class ReinforceConfig(ClipConfig):
    """REINFORCE++ (arXiv 2501.03262): rewards normalised over the whole batch."""

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
    """Group reward-decoupled normalisation (arXiv 2601.05242): each reward term is normalised separately."""

    name: Literal["gdpo"] = "gdpo"
    advantage: advantages.Estimator = "gdpo"


class DapoConfig(ClipConfig):
    """Decoupled clip and dynamic sampling (arXiv 2503.14476)."""

    name: Literal["dapo"] = "dapo"
    overlong_buffer_fraction: float = Field(default=0.2, ge=0, le=1)
    max_resample_rounds: int = Field(default=3, ge=0)
    clip_high: float = Field(default=0.28, gt=0)
