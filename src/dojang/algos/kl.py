"""Estimates of KL(policy || reference) from sampled tokens, with d = log policy - log reference.

k1   d                  unbiased, but may be negative; as a loss its gradient is zero on average
k2   d^2 / 2            biased; its gradient is that of the KL
k3   exp(-d) - 1 + d    unbiased and never negative; its gradient is not that of the KL
k3+  k3's value with k2's gradient
"""

from typing import TYPE_CHECKING, Literal

from dojang.algos.safe_exp import safe_exp

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Estimator", "kl_divergence"]

Estimator = Literal["k1", "k2", "k3", "k3+"]


def kl_divergence(gap_BT: "Tensor", estimator: Estimator) -> "Tensor":
    """KL estimate of each token from its log policy - log reference."""
    if estimator == "k1":
        return gap_BT
    k2_BT = gap_BT.square() / 2
    if estimator == "k2":
        return k2_BT
    k3_BT = safe_exp(-gap_BT) - 1 + gap_BT
    return k3_BT if estimator == "k3" else k2_BT - k2_BT.detach() + k3_BT.detach()
