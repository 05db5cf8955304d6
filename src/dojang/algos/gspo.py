"""GSPO: a clipped sequence-level importance ratio (arXiv 2507.18071).

s   = exp(mean over the sequence of log r_t)
L_t = -min(s_t A, clip(s_t, 1 - low, 1 + high) A)      s_t = s in value, with the gradient of token t's log-prob
"""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dojang.algos.grpo import ClipConfig
from dojang.algos.importance_correction import sequence_mean
from dojang.protocols import LossAggregation, TokenBatch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["GspoConfig"]


class GspoConfig(ClipConfig):
    """Group sequence policy optimization."""

    name: Literal["gspo"] = "gspo"
    # The clip range is narrower than the rounding differences between engine and trainer.
    old_logprobs: Literal["behaviour", "trainer"] = "trainer"
    loss_aggregation: LossAggregation = "sequences"
    clip_low: float = Field(default=3e-4, gt=0, lt=1)
    """Lower clip of the sequence ratio (geometric mean of the token ratios): clipped at 1 - clip_low."""
    clip_high: float = Field(default=4e-4, gt=0)
    """Upper clip of the sequence ratio: clipped at 1 + clip_high."""

    def surrogate(self, batch: TokenBatch, delta_BT: "Tensor") -> "tuple[Tensor, Tensor]":
        fixed_BT = delta_BT.detach()
        return super().surrogate(batch, delta_BT - fixed_BT + sequence_mean(fixed_BT, batch))
