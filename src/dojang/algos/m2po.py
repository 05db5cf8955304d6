"""M2PO: bounds the second moment of the log-ratios of off-policy data (arXiv 2510.01161).

Only tokens that already moved in the direction of their advantage count: A > 0 and r > 1, or A < 0 and r < 1. If the
mean of their squared log-ratios is above the threshold, those with the largest ratios get no gradient. The mean is over
all tokens of the optimizer step, whatever its micro-batches and ranks. Three variants have been published:

    paper      the largest are masked until the mean of the rest is within the threshold; no clip otherwise
    authors    ratios are clipped at exp(-t) and exp(t), with the largest t for which mean(min(d^2, t^2)) <= threshold
    astraflow  as the paper, but the largest one kept sets a clip of ratios, no wider than 0.05 and 21

Where they cut, a clip and a mask have the same gradient: none.
"""

import math
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dojang.algos.policy_gradient import PolicyGradientConfig
from dojang.algos.safe_exp import safe_exp
from dojang.protocols import TokenBatch
from dojang.types import Metrics

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["M2poConfig"]

_MIN_LOG_RATIO, _MAX_LOG_RATIO = math.log(1 - 0.95), math.log(1 + 20)
"""Widest clip of the variant `astraflow`."""


class M2poConfig(PolicyGradientConfig):
    """Second-moment trust policy optimization."""

    name: Literal["m2po"] = "m2po"
    old_logprobs: Literal["behaviour"] = "behaviour"
    """Always behaviour: the second moment measures how far off-policy the data is."""
    threshold: float = Field(default=0.04, gt=0)
    """Largest allowed second moment of the log-ratios (AstraFlow's recipes: 0.01)."""
    variant: Literal["paper", "authors", "astraflow"] = "paper"
    """Published variant (docs/algorithms.md)."""

    def limit(self, delta_N: "Tensor", advantage_N: "Tensor") -> tuple[float, Metrics]:
        counted_N = ((advantage_N > 0) & (delta_N > 0)) | ((advantage_N < 0) & (delta_N < 0))
        moment_N = delta_N[counted_N].double().square().sort().values
        before = after = float(moment_N.cumsum(0)[-1] / len(moment_N)) if len(moment_N) else 0.0
        square = math.inf
        if before > self.threshold:
            square, after = (_clip_limit if self.variant == "authors" else _mask_limit)(moment_N, self.threshold)
        return math.sqrt(square), {"actor/m2/before": before, "actor/m2/after": after}

    def surrogate(self, batch: TokenBatch, delta_BT: "Tensor") -> "tuple[Tensor, Tensor]":
        import torch

        advantage_BT, ratio_BT = batch.advantage_BT, safe_exp(delta_BT)
        low, high = -batch.limit, batch.limit
        if self.variant == "astraflow":
            low, high = max(low, _MIN_LOG_RATIO), min(high, _MAX_LOG_RATIO)
        cut_BT = ((advantage_BT > 0) & (delta_BT > high)) | ((advantage_BT < 0) & (delta_BT < low))
        fixed_BT = torch.zeros_like(ratio_BT) if self.variant == "paper" else safe_exp(delta_BT.clamp(low, high))
        return -torch.where(cut_BT, fixed_BT, ratio_BT) * advantage_BT, cut_BT


def _mask_limit(moment_N: "Tensor", threshold: float) -> tuple[float, float]:
    """Limit between the largest kept and the smallest masked, and the mean of the kept. Equal values go together."""
    import torch

    mean_N = moment_N.cumsum(0) / torch.arange(1, len(moment_N) + 1, device=moment_N.device)
    kept = min(int((mean_N <= threshold).sum()), len(moment_N) - 1)  # rounding may put all within the threshold
    kept = int((moment_N < moment_N[kept]).sum())
    if not kept:
        return 0.0, 0.0
    return float(moment_N[kept - 1] + moment_N[kept]) / 2, float(mean_N[kept - 1])


def _clip_limit(moment_N: "Tensor", threshold: float) -> tuple[float, float]:
    """Square at which to clip so that the mean is the threshold, and that mean."""
    import torch

    count = len(moment_N)
    below_N = moment_N.cumsum(0) - moment_N
    left_N = count - torch.arange(count, device=moment_N.device)
    cut_N = (threshold * count - below_N) / left_N  # if all before each are below the clip, and none after
    return float(cut_N[min(int((cut_N > moment_N).sum()), count - 1)]), threshold
