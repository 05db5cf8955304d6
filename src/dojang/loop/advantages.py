"""Advantages of samples: one per episode, or one per turn of an episode.

Samples of a group with the same role and index are parts of one episode (environments/episode.py). Episodes are
compared, not their parts, so an episode in two parts does not count twice in its group's mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dojang.protocols import Algorithm
from dojang.types import Group, Sample, Turn

__all__ = ["Credit", "compute_advantages", "first_parts"]

Credit = Literal["episode", "turn"]
"""Level at which samples are compared."""


def compute_advantages(algorithm: Algorithm, groups: Sequence[Group], credit: Credit = "episode") -> list[Group]:
    """Returns the groups with the advantage of every sample set; with `credit` turn, that of every token."""
    if credit == "turn":
        return _turn_advantages(algorithm, groups)
    heads = [replace(group, samples=first_parts(group.samples)) for group in groups]
    return [
        _share(group, head, advantages)
        for group, head, advantages in zip(groups, heads, algorithm.advantages(heads), strict=True)
    ]


def first_parts(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    """Returns the first part of each episode."""
    seen: dict[tuple[str, int], Sample] = {}
    for sample in samples:
        seen.setdefault((sample.role, sample.index), sample)
    return tuple(seen.values())


def _share(group: Group, head: Group, advantages: Sequence[float]) -> Group:
    """Gives every part of an episode the advantage of its first one."""
    by_episode = {
        (sample.role, sample.index): advantage for sample, advantage in zip(head.samples, advantages, strict=True)
    }
    samples = (replace(each, advantage=by_episode[each.role, each.index]) for each in group.samples)
    return replace(group, samples=tuple(samples))


@dataclass(frozen=True, slots=True)
class _Reply:
    """A sampled turn of an episode."""

    place: int
    """Place of its sample in the group."""
    tokens: Turn
    reward: float
    """Rewards of the episode from this turn on."""


def _turn_advantages(algorithm: Algorithm, groups: Sequence[Group]) -> list[Group]:
    """Compares turn k of an episode with turn k of the others (AT-GRPO): by the rewards from that turn on."""
    turns = [(group, replies) for group in groups for replies in _by_turn(group)]
    alike = [replace(group, samples=tuple(_rewarded(group, each) for each in replies)) for group, replies in turns]
    values = {id(group): [np.zeros(len(sample.tokens)) for sample in group.samples] for group in groups}
    for (group, replies), advantages in zip(turns, algorithm.advantages(alike), strict=True):
        for reply, advantage in zip(replies, advantages, strict=True):
            values[id(group)][reply.place][reply.tokens.start : reply.tokens.end] = advantage
    return [replace(group, samples=tuple(map(_with_tokens, group.samples, values[id(group)]))) for group in groups]


def _by_turn(group: Group) -> list[list[_Reply]]:
    """Replies of all episodes of a group, one list per turn; the parts of an episode are numbered through."""
    episodes: dict[tuple[str, int], list[tuple[int, Turn]]] = {}
    for place, sample in enumerate(group.samples):
        found = episodes.setdefault((sample.role, sample.index), [])
        found += [(place, turn) for turn in _sampled_turns(sample)]
    turns: list[list[_Reply]] = [[] for _ in range(max(map(len, episodes.values()), default=0))]
    for replies in episodes.values():
        for number, (place, turn) in enumerate(replies):
            turns[number].append(_Reply(place, turn, sum(each.reward for _, each in replies[number:])))
    return turns


def _sampled_turns(sample: Sample) -> list[Turn]:
    """The sampled turns; one for a completion of a single turn."""
    if sample.turns:
        return [each for each in sample.turns if each.role == "assistant"]
    first = int(sample.mask.argmax()) if sample.mask.any() else len(sample.tokens)
    return [Turn("assistant", first, len(sample.tokens), sample.reward)]


def _rewarded(group: Group, reply: _Reply) -> Sample:
    """Copy of a sample with the reward of one of its turns."""
    sample = group.samples[reply.place]
    return replace(sample, verdict=replace(sample.verdict, reward=float(reply.reward), parts={}, terms={}))


def _with_tokens(sample: Sample, values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> Sample:
    """Copy with per-token advantages; `advantage` is their mean, for metrics and records."""
    mean = float(values[sample.mask].mean()) if sample.mask.any() else 0.0
    return replace(sample, advantage=mean, advantages=values)
