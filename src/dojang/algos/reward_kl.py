"""KL in the reward: a penalty for each token's divergence from the reference, subtracted from the reward before
advantages are computed (veRL's use_kl_in_reward; arXiv 1909.08593).

With d = log policy - log reference, both the trainer's before the first update, the penalty of a token is

    kl          d                                                    k1
    abs         |d|
    mse         d^2 / 2                                              k2
    low_var_kl  exp(-d) - 1 + d, with |d| and the result clipped     k3, as veRL clips it: at 20 and 10

An algorithm with a critic uses the penalty of each token; the others subtract the sum over the completion.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Literal

from dojang.types import Group, Metrics, Sample

__all__ = ["Penalty", "penalise"]

Penalty = Literal["kl", "abs", "mse", "low_var_kl"]


def penalise(
    groups: Sequence[Group],
    logprobs: Sequence[Sequence[float]],
    ref_logprobs: Sequence[Sequence[float]],
    coef: float,
    penalty: Penalty,
) -> tuple[list[Group], Metrics]:
    """Returns the groups with token rewards of -coef * penalty, and metrics. Log-probs are of all samples, in order."""
    streams = iter(zip(logprobs, ref_logprobs, strict=True))
    means = list[float]()

    def penalised(sample: Sample) -> Sample:
        mine, theirs = map(sample.sampled, next(streams))
        if costs := [_cost(a - b, penalty) for a, b in zip(mine, theirs, strict=True)]:
            means.append(fmean(costs))
        return replace(sample, token_rewards=sample.at_mask([-coef * cost for cost in costs]))

    found = [replace(group, samples=tuple(map(penalised, group.samples))) for group in groups]
    figures: Mapping[str, float] = {"actor/reward_kl_penalty": fmean(means)} if means else {}
    return found, figures


def _cost(gap: float, penalty: Penalty) -> float:
    if penalty == "kl":
        return gap
    if penalty == "abs":
        return abs(gap)
    if penalty == "mse":
        return gap * gap / 2
    gap = min(max(gap, -20.0), 20.0)
    return min(max(math.exp(-gap) - 1 + gap, -10.0), 10.0)
