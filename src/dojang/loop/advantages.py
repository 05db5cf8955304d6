"""Advantages of samples: one per episode, or one per turn of an episode.

Samples of a group with the same role and index are parts of one episode (environments/episode.py). Episodes are
compared, not their parts, so an episode in two parts does not count twice in its group's mean.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from dojang.protocols import Algorithm
from dojang.types import Group, Sample, Turn

__all__ = ["Credit", "compute_advantages", "first_parts", "sampled_turns"]

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


def _turn_advantages(algorithm: Algorithm, groups: Sequence[Group]) -> list[Group]:
    """Compares turn k of an episode with turn k of the others (AT-GRPO): by the rewards from that turn on."""
    places = [_replies(group) for group in groups]
    # One group per turn: the algorithm compares whatever is in a group.
    keys = [(at, turn) for at, found in enumerate(places) for turn in sorted({turn for _, turn, _ in found})]
    alike = [
        replace(groups[at], samples=tuple(_with_return(groups[at], place, turn) for place, turn, _ in _of(places, key)))
        for key in keys
        for at, turn in [key]
    ]
    values = [[np.zeros(len(sample.tokens)) for sample in group.samples] for group in groups]
    for key, advantages in zip(keys, algorithm.advantages(alike), strict=True):
        for (place, _, span), advantage in zip(_of(places, key), advantages, strict=True):
            values[key[0]][place][span.start : span.end] = advantage
    return [
        replace(group, samples=tuple(map(_with_tokens, group.samples, found)))
        for group, found in zip(groups, values, strict=True)
    ]


_Reply = tuple[int, int, Turn]
"""Place of a sample in its group, number of the turn within the episode, and its range of tokens."""


def _of(places: Sequence[Sequence[_Reply]], key: tuple[int, int]) -> list[_Reply]:
    """Replies of one turn of a group."""
    at, turn = key
    return [each for each in places[at] if each[1] == turn]


def _replies(group: Group) -> list[_Reply]:
    """All sampled turns of a group, numbered through the parts of an episode."""
    counts: dict[tuple[str, int], int] = {}
    found: list[_Reply] = []
    for place, sample in enumerate(group.samples):
        key = (sample.role, sample.index)
        for turn in sampled_turns(sample):
            found.append((place, counts.get(key, 0), turn))
            counts[key] = counts.get(key, 0) + 1
    return found


def sampled_turns(sample: Sample) -> list[Turn]:
    """Returns the sampled turns; one for a completion of a single turn."""
    if sample.turns:
        return [each for each in sample.turns if each.role == "assistant"]
    first = int(sample.mask.argmax()) if sample.mask.any() else len(sample.tokens)
    return [Turn("assistant", first, len(sample.tokens), sample.reward)]


def _with_return(group: Group, place: int, turn: int) -> Sample:
    """Copy of a sample whose reward is the sum of its episode's rewards from a turn on."""
    sample = group.samples[place]
    episode = [
        each
        for other in group.samples
        if (other.role, other.index) == (sample.role, sample.index)
        for each in sampled_turns(other)
    ]
    reward = float(sum(each.reward for each in episode[turn:]))
    return replace(sample, verdict=replace(sample.verdict, reward=reward, parts={}, terms={}))


def _with_tokens(sample: Sample, values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> Sample:
    """Copy with per-token advantages; `advantage` is their mean, for metrics and records."""
    mean = float(values[sample.mask].mean()) if sample.mask.any() else 0.0
    return replace(sample, advantage=mean, advantages=values)
