"""Rewards -> advantages: how much better each sample did than could be expected.

An estimator sees all groups of a step, since some compare with the whole batch. Groups that cannot be compared (one
sample, or all alike) get exactly zero, where the arithmetic might leave a rounding error or a NaN.

    grpo                    (R - mean of group) / (std of group + 1e-6)            std with n - 1
    mean                    R - mean of group                                      Dr. GRPO
    rloo                    R - mean of the others of the group
    reinforce++             (R - mean of batch) / (std of batch + 1e-8)
    reinforce++-baseline    R - mean of group, then divided by its std over the batch
    reinforce++-tokens, reinforce++-baseline-tokens
                            the same with mean and std over the trained tokens of the batch: a sample counts once for
                            each of its tokens (as OpenRLHF and veRL do)
    maxrl                   (R - mean of group) / mean of group                    0 where that mean is 0; R >= 0
    gdpo                    grpo for each term of the reward by itself, their weighted sum whitened over the batch

whiten_tokens normalises once more, over the trained tokens of the batch: (A - mean) / (std + 1e-8), each sample's A
counted once for each of its tokens.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from dojang.core.errors import ConfigError

__all__ = ["ESTIMATORS", "Estimator", "gdpo", "whiten_tokens"]

Estimator = Literal[
    "grpo",
    "mean",
    "rloo",
    "reinforce++",
    "reinforce++-tokens",
    "reinforce++-baseline",
    "reinforce++-baseline-tokens",
    "maxrl",
    "gdpo",
]
Rewards = Sequence[Sequence[float]]
"""Of each sample of each group."""
Lengths = Sequence[Sequence[int]]
"""Number of trained tokens of each sample of each group."""
Terms = Sequence[Sequence[Mapping[str, tuple[float, float]]]]
"""Likewise weight and value of each term of the reward, by name."""
_TINY, _TINIER = 1e-6, 1e-8


def _grpo(groups: Rewards, _: Lengths) -> list[list[float]]:
    return [_standardised(rewards) for rewards in groups]


def _mean(groups: Rewards, _: Lengths) -> list[list[float]]:
    return [_centred(rewards) for rewards in groups]


def _rloo(groups: Rewards, _: Lengths) -> list[list[float]]:
    return [[each * len(rewards) / max(1, len(rewards) - 1) for each in _centred(rewards)] for rewards in groups]


def _reinforce(groups: Rewards, _: Lengths) -> list[list[float]]:
    return _whitened(groups)


def _reinforce_tokens(groups: Rewards, lengths: Lengths) -> list[list[float]]:
    if len({each for group in groups for each in group}) < 2:
        return [[0.0] * len(group) for group in groups]
    return whiten_tokens(groups, lengths, among=[True] * len(groups))


def _reinforce_baseline(groups: Rewards, lengths: Lengths) -> list[list[float]]:
    return _whitened(_mean(groups, lengths), centre=False)


def _reinforce_baseline_tokens(groups: Rewards, lengths: Lengths) -> list[list[float]]:
    return whiten_tokens(_mean(groups, lengths), lengths, among=[True] * len(groups))


def _maxrl(groups: Rewards, _: Lengths) -> list[list[float]]:
    if (least := min((each for rewards in groups for each in rewards), default=0.0)) < 0:
        raise ConfigError(
            f"a reward of {least:g} with algo.advantage=maxrl, which divides by the mean of a group and is defined for "
            "rewards of 0 and more; change the task's rewards (task.reward_shape=binary for programs) or algo.advantage"
        )
    means = [statistics.fmean(rewards) if rewards else 0.0 for rewards in groups]
    return [
        [each / mean if mean > 0 else 0.0 for each in _centred(rewards)]
        for rewards, mean in zip(groups, means, strict=True)
    ]


def gdpo(groups: Terms) -> list[list[float]]:
    """Each term is normalised among the samples of a group that have it; the others get nothing from it."""
    names = sorted({name for group in groups for terms in group for name in terms})
    summed = [[0.0] * len(group) for group in groups]
    for name in names:
        for group, sums in zip(groups, summed, strict=True):
            places = [place for place, terms in enumerate(group) if name in terms]
            own = _standardised([group[place][name][1] for place in places])
            for place, each in zip(places, own, strict=True):
                sums[place] += group[place][name][0] * each
    return _whitened(summed, centre=False)  # their mean is nothing already, and zeros stay zeros


def whiten_tokens(groups: Rewards, lengths: Lengths, *, among: Sequence[bool] | None = None) -> list[list[float]]:
    """Advantages with mean 0 and standard deviation 1 (n - 1) over the tokens of the batch. `among`: the groups that
    count; without it all but groups of zeros, which stay zero."""
    trained = [any(group) for group in groups] if among is None else among
    pairs = [
        (each, length)
        for group, sizes, counts in zip(groups, lengths, trained, strict=True)
        for each, length in zip(group, sizes, strict=True)
        if counts and length
    ]
    if len({each for each, _ in pairs}) < 2:
        return [list(group) for group in groups]
    tokens = sum(length for _, length in pairs)
    mean = math.fsum(each * length for each, length in pairs) / tokens
    scale = math.sqrt(math.fsum(length * (each - mean) ** 2 for each, length in pairs) / (tokens - 1)) + _TINIER
    return [
        [(each - mean) / scale for each in group] if counts else list(group)
        for group, counts in zip(groups, trained, strict=True)
    ]


def _centred(rewards: Sequence[float]) -> list[float]:
    if len(set(rewards)) < 2:
        return [0.0] * len(rewards)
    mean = statistics.fmean(rewards)
    return [reward - mean for reward in rewards]


def _standardised(rewards: Sequence[float]) -> list[float]:
    if len(set(rewards)) < 2:
        return [0.0] * len(rewards)
    scale = statistics.stdev(rewards) + _TINY
    return [each / scale for each in _centred(rewards)]


def _whitened(groups: Rewards, *, centre: bool = True) -> list[list[float]]:
    """Over the batch. Without centring the mean stays 0 group by group."""
    flat = [each for group in groups for each in group]
    if len(set(flat)) < 2:
        return [[0.0] * len(group) for group in groups]
    mean = statistics.fmean(flat) if centre else 0.0
    scale = statistics.stdev(flat) + _TINIER
    return [[(each - mean) / scale for each in group] for group in groups]


ESTIMATORS: Mapping[str, Callable[[Rewards, Lengths], list[list[float]]]] = {
    "grpo": _grpo,
    "mean": _mean,
    "rloo": _rloo,
    "reinforce++": _reinforce,
    "reinforce++-tokens": _reinforce_tokens,
    "reinforce++-baseline": _reinforce_baseline,
    "reinforce++-baseline-tokens": _reinforce_baseline_tokens,
    "maxrl": _maxrl,
}
