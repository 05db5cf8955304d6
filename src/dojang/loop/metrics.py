"""The figures of a training step, under the names people in this field already chart."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean

from dojang.loop.health_check import has_signal
from dojang.types import Group, Metrics, Sample

__all__ = ["Clock", "advantage_metrics", "rollout_metrics"]


_FIRST = ("policy", "coder")
"""Roles of the model a run is about; the figures of others are under the names of their roles."""


def rollout_metrics(groups: Sequence[Group]) -> Metrics:
    """Rewards, lengths, verdicts and how many groups can teach."""
    played = dict.fromkeys(sample.role for group in groups for sample in (*group.samples, *group.unjudged))
    return {
        name if role in _FIRST else f"{role}/{name}": value
        for role in played or _FIRST[:1]
        for name, value in _role_metrics([group.of(role) for group in groups]).items()
    }


def _role_metrics(groups: Sequence[Group]) -> Metrics:
    samples = [sample for group in groups for sample in group.samples]
    errors = sum(len(group.judge_errors) for group in groups)
    return {
        "groups/total": float(len(groups)),
        "groups/zero_variance": float(sum(not has_signal(group) for group in groups)),
        "judge/errors": float(errors),
        "judge/error_ratio": errors / max(1, errors + len(samples)),
        **dict(_sample_metrics(samples)),
    }


def advantage_metrics(groups: Sequence[Group]) -> Metrics:
    """Where each token has an advantage of its own."""
    tokens = [
        advantage
        for group in groups
        for sample in group.samples
        for advantage, mine in zip(sample.advantages, sample.mask, strict=True)
        if mine
    ]
    return dict(_spread("critic/advantages", tokens))


def _sample_metrics(samples: Sequence[Sample]) -> Iterator[tuple[str, float]]:
    if not samples:
        return
    yield from _spread("critic/rewards", [sample.reward for sample in samples])
    yield from _spread("critic/advantages", [sample.advantage for sample in samples])
    yield from _spread("response_length", [float(sample.response_length) for sample in samples])
    yield "response_length/clip_ratio", fmean(sample.finish == "length" for sample in samples)
    parts: defaultdict[str, list[float]] = defaultdict(list)
    for sample in samples:
        for name, value in sample.verdict.parts.items():
            parts[name].append(value)
    for name, values in parts.items():
        yield f"critic/rewards/{name}/mean", fmean(values)
    for outcome, count in Counter(sample.verdict.outcome for sample in samples).items():
        yield f"judge/outcome/{outcome}", count / len(samples)


def _spread(name: str, values: Sequence[float]) -> Iterator[tuple[str, float]]:
    yield f"{name}/mean", fmean(values)
    yield f"{name}/min", min(values)
    yield f"{name}/max", max(values)


class Clock:
    """Where the time of a step goes."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self.spent: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.spent[f"timing_s/{name}"] = time.monotonic() - started

    def step_metrics(self, groups: Sequence[Group]) -> Metrics:
        """The parts, the whole, and how many tokens were generated in it."""
        whole = time.monotonic() - self._started
        tokens = sum(sample.response_length for group in groups for sample in (*group.samples, *group.unjudged))
        return {**self.spent, "timing_s/step": whole, "perf/tokens_per_s": tokens / whole}
