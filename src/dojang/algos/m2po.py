"""M2PO: stale data is kept within a budget for the second moment of its log-ratios (arXiv 2510.01161).

Only tokens that go on in the direction they are pushed count: those with A > 0 and r > 1, or A < 0 and r < 1. If the
mean of their squared log-ratios is above the threshold, those furthest away learn nothing. The mean is over all tokens
of the optimizer step, whatever its micro-batches and ranks. Three readings have been published:

    paper      the furthest are left out until the mean of the rest is within the threshold; no clip otherwise
    authors    ratios are clipped at exp(-t) and exp(t), with the largest t for which mean(min(d^2, t^2)) <= threshold
    astraflow  as the paper, but the furthest that is kept sets a clip of ratios, no wider than 0.05 and 21

A clip and a mask have the same gradient where they cut: none.
"""

import math
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dojang.algos.policy_gradient import PolicyConfig
from dojang.algos.safe_exp import growth
from dojang.protocols import TokenBatch
from dojang.types import Metrics

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["M2poConfig"]

_LEAST, _MOST = math.log(1 - 0.95), math.log(1 + 20)
"""The widest clip of the reading `astraflow`."""


class M2poConfig(PolicyConfig):
    """Second-moment trust policy optimization."""

    name: Literal["m2po"] = "m2po"
    old_logprobs: Literal["behaviour"] = "behaviour"
    """Always behaviour: the second moment measures how stale the data is."""
    threshold: float = Field(default=0.04, gt=0)
    """The second moment that is allowed (AstraFlow's recipes: 0.01)."""
    variant: Literal["paper", "authors", "astraflow"] = "paper"
    """Which of its published readings."""

    def limit(self, delta_N: "Tensor", advantage_N: "Tensor") -> tuple[float, Metrics]:
        counted_N = ((advantage_N > 0) & (delta_N > 0)) | ((advantage_N < 0) & (delta_N < 0))
        moment_N = delta_N[counted_N].double().square().sort().values
        before = after = float(moment_N.cumsum(0)[-1] / len(moment_N)) if len(moment_N) else 0.0
        square = math.inf
        if before > self.threshold:
            square, after = (_clipped if self.variant == "authors" else _removed)(moment_N, self.threshold)
        return math.sqrt(square), {"actor/m2/before": before, "actor/m2/after": after}

    def surrogate(self, batch: TokenBatch, delta_BT: "Tensor") -> "tuple[Tensor, Tensor]":
        import torch

        advantage_BT, ratio_BT = batch.advantage_BT, growth(delta_BT)
        low, high = -batch.limit, batch.limit
        if self.variant == "astraflow":
            low, high = max(low, _LEAST), min(high, _MOST)
        cut_BT = ((advantage_BT > 0) & (delta_BT > high)) | ((advantage_BT < 0) & (delta_BT < low))
        fixed_BT = torch.zeros_like(ratio_BT) if self.variant == "paper" else growth(delta_BT.clamp(low, high))
        return -torch.where(cut_BT, fixed_BT, ratio_BT) * advantage_BT, cut_BT


def _removed(moment_N: "Tensor", threshold: float) -> tuple[float, float]:
    """Between the largest that is kept and the smallest that is not; and the mean of those kept. Equals go together."""
    import torch

    mean_N = moment_N.cumsum(0) / torch.arange(1, len(moment_N) + 1, device=moment_N.device)
    kept = min(int((mean_N <= threshold).sum()), len(moment_N) - 1)  # rounding may find all within it
    kept = int((moment_N < moment_N[kept]).sum())
    if not kept:
        return 0.0, 0.0
    return float(moment_N[kept - 1] + moment_N[kept]) / 2, float(mean_N[kept - 1])


def _clipped(moment_N: "Tensor", threshold: float) -> tuple[float, float]:
    """The square at which larger ones are cut so that the mean is the threshold; and that mean."""
    import torch

    count = len(moment_N)
    below_N = moment_N.cumsum(0) - moment_N
    left_N = count - torch.arange(count, device=moment_N.device)
    cut_N = (threshold * count - below_N) / left_N  # if all before each are below the cut, and none after
    return float(cut_N[min(int((cut_N > moment_N).sum()), count - 1)]), threshold
