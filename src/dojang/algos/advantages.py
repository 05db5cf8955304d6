"""Advantage estimators: rewards -> advantages.

An estimator gets all groups of a step, since some normalise over the whole batch. Groups with one sample or equal
rewards get exactly zero, where the arithmetic could leave a rounding error or a NaN.

    grpo                    (R - mean of group) / (std of group + 1e-6)            std with n - 1
    mean                    R - mean of group                                      Dr. GRPO
    rloo                    R - mean of the others of the group
    reinforce++             (R - mean of batch) / (std of batch + 1e-8)
    reinforce++-baseline    R - mean of group, then divided by its std over the batch
    reinforce++-tokens, reinforce++-baseline-tokens
                            the same with mean and std over the trained tokens of the batch: a sample counts once for
                            each of its tokens (as OpenRLHF and veRL do)
    maxrl                   (R - mean of group) / mean of group                    0 where that mean is 0; R >= 0
    gdpo                    grpo for each term of the reward, their weighted sum whitened over the batch

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
"""Reward of each sample of each group."""
Lengths = Sequence[Sequence[int]]
"""Number of trained tokens of each sample of each group."""
Terms = Sequence[Sequence[Mapping[str, tuple[float, float]]]]
"""Weight and value of each reward term, by name, of each sample of each group."""
_GROUP_EPS, _BATCH_EPS = 1e-6, 1e-8


def _grpo(groups: Rewards, _: Lengths) -> list[list[float]]:
    return [_standardise(rewards) for rewards in groups]


def _mean(groups: Rewards, _: Lengths) -> list[list[float]]:
    return [_centre(rewards) for rewards in groups]


def _rloo(groups: Rewards, _: Lengths) -> list[list[float]]:
    return [[each * len(rewards) / max(1, len(rewards) - 1) for each in _centre(rewards)] for rewards in groups]


def _reinforce(groups: Rewards, _: Lengths) -> list[list[float]]:
    return _whiten(groups)


def _reinforce_tokens(groups: Rewards, lengths: Lengths) -> list[list[float]]:
    if len({each for group in groups for each in group}) < 2:
        return [[0.0] * len(group) for group in groups]
    return whiten_tokens(groups, lengths, among=[True] * len(groups))


def _reinforce_baseline(groups: Rewards, lengths: Lengths) -> list[list[float]]:
    return _whiten(_mean(groups, lengths), centre=False)


def _reinforce_baseline_tokens(groups: Rewards, lengths: Lengths) -> list[list[float]]:
    return whiten_tokens(_mean(groups, lengths), lengths, among=[True] * len(groups))


def _maxrl(groups: Rewards, _: Lengths) -> list[list[float]]:
    if (least := min((each for rewards in groups for each in rewards), default=0.0)) < 0:
        raise ConfigError(
            f"a reward of {least:g} with algo.advantage=maxrl, which divides by the group mean and needs rewards of at "
            "least 0; change the task's rewards (task.reward_shape=binary for programs) or algo.advantage"
        )
    means = [statistics.fmean(rewards) if rewards else 0.0 for rewards in groups]
    return [
        [each / mean if mean > 0 else 0.0 for each in _centre(rewards)]
        for rewards, mean in zip(groups, means, strict=True)
    ]


def gdpo(groups: Terms) -> list[list[float]]:
    """GDPO: normalises each reward term among the samples of a group that have it; the others get 0 from it."""
    names = sorted({name for group in groups for terms in group for name in terms})
    summed = [[0.0] * len(group) for group in groups]
    for name in names:
        for group, sums in zip(groups, summed, strict=True):
            places = [place for place, terms in enumerate(group) if name in terms]
            own = _standardise([group[place][name][1] for place in places])
            for place, each in zip(places, own, strict=True):
                sums[place] += group[place][name][0] * each
    return _whiten(summed, centre=False)  # the mean is 0 already, and zeros stay zeros


def whiten_tokens(groups: Rewards, lengths: Lengths, *, among: Sequence[bool] | None = None) -> list[list[float]]:
    """Whitens advantages to mean 0 and standard deviation 1 (n - 1) over the tokens of the batch. `among` selects the
    groups that count; by default all but groups of zeros, which stay zero."""
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
    scale = math.sqrt(math.fsum(length * (each - mean) ** 2 for each, length in pairs) / (tokens - 1)) + _BATCH_EPS
    return [
        [(each - mean) / scale for each in group] if counts else list(group)
        for group, counts in zip(groups, trained, strict=True)
    ]


def _centre(rewards: Sequence[float]) -> list[float]:
    if len(set(rewards)) < 2:
        return [0.0] * len(rewards)
    mean = statistics.fmean(rewards)
    return [reward - mean for reward in rewards]


def _standardise(rewards: Sequence[float]) -> list[float]:
    if len(set(rewards)) < 2:
        return [0.0] * len(rewards)
    scale = statistics.stdev(rewards) + _GROUP_EPS
    return [each / scale for each in _centre(rewards)]


def _whiten(groups: Rewards, *, centre: bool = True) -> list[list[float]]:
    """Whitens over the batch. Without `centre` only divides: each group already has mean 0."""
    flat = [each for group in groups for each in group]
    if len(set(flat)) < 2:
        return [[0.0] * len(group) for group in groups]
    mean = statistics.fmean(flat) if centre else 0.0
    scale = statistics.stdev(flat) + _BATCH_EPS
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
