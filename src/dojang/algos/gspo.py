"""GSPO: the ratio of a whole sequence, clipped (arXiv 2507.18071).

s   = exp(mean over the sequence of log r_t)
L_t = -min(s_t A, clip(s_t, 1 - low, 1 + high) A)      s_t = s in value, with the gradient of token t's log-prob
"""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dojang.algos.grpo import ClipConfig
from dojang.algos.importance_correction import sequence_mean
from dojang.protocols import Average, TokenBatch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["GspoConfig"]


class GspoConfig(ClipConfig):
    """Group sequence policy optimization."""

    name: Literal["gspo"] = "gspo"
    old_logprobs: Literal["behaviour", "trainer"] = (
        "trainer"  # its clip is narrower than the rounding of another arithmetic
    )
    loss_aggregation: Average = "sequences"
    clip_low: float = Field(default=3e-4, gt=0, lt=1)
    """How far a sequence's ratio, its tokens' geometric mean, may fall before its gradient is cut."""
    clip_high: float = Field(default=4e-4, gt=0)
    """How far it may rise."""

    def surrogate(self, batch: TokenBatch, delta_BT: "Tensor") -> "tuple[Tensor, Tensor]":
        fixed_BT = delta_BT.detach()
        return super().surrogate(batch, delta_BT - fixed_BT + sequence_mean(fixed_BT, batch))
