"""Metrics of a training step, under veRL's names."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean

from dojang.loop.endings import MAIN_ROLES
from dojang.loop.health_check import has_signal
from dojang.loop.watchdog import activity
from dojang.types import Group, Metrics, Sample

__all__ = ["StepTimer", "advantage_metrics", "rollout_metrics", "staleness_metrics"]


def rollout_metrics(groups: Sequence[Group]) -> Metrics:
    """Rewards, lengths, verdicts, and the number of groups without a reward signal."""
    roles = dict.fromkeys(sample.role for group in groups for sample in (*group.samples, *group.unjudged))
    return {
        name if role in MAIN_ROLES else f"{role}/{name}": value
        for role in roles or MAIN_ROLES[:1]
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
        **_episode_metrics(groups),
    }


def _episode_metrics(groups: Sequence[Group]) -> Metrics:
    """Number of replies per episode, and share of episodes in several samples; none without an environment."""
    replies, parts = Counter[tuple[int, str, int]](), Counter[tuple[int, str, int]]()
    for at, group in enumerate(groups):
        for sample in group.samples:
            if sample.turns:
                key = (at, sample.role, sample.index)
                replies[key] += sum(turn.role == "assistant" for turn in sample.turns)
                parts[key] += 1
    if not replies:
        return {}
    return {
        "episodes/turns/mean": fmean(replies.values()),
        "episodes/turns/max": float(max(replies.values())),
        "episodes/split": fmean(count > 1 for count in parts.values()),
        **_tool_metrics([sample for group in groups for sample in group.samples], len(replies)),
    }


def _tool_metrics(samples: Sequence[Sample], episodes: int) -> Metrics:
    """Number of tool calls answered with an error per episode; none if no tool was called."""
    called = [sample for sample in samples if any(turn.role == "tool" for turn in sample.turns)]
    errors = sum(line.startswith("[tool] error: ") for sample in called for line in sample.text.split("\n"))
    return {"episodes/tool_errors/mean": errors / episodes} if called else {}


def advantage_metrics(groups: Sequence[Group]) -> Metrics:
    """Advantages per token (critic, distillation)."""
    tokens = [
        advantage for group in groups for sample in group.samples for advantage in sample.sampled(sample.advantages)
    ]
    return dict(_mean_min_max("critic/advantages", tokens))


def staleness_metrics(groups: Sequence[Group], version: int) -> Metrics:
    """Staleness of each sample: published versions between its oldest token and the weights it is trained on."""
    ages = [
        float(version - sample.oldest_version)
        for group in groups
        for sample in group.samples
        if sample.version >= 0  # SFT completions were not sampled
    ]
    shares = {f"staleness/share/{age:g}": count / len(ages) for age, count in sorted(Counter(ages).items())}
    return {"staleness/mean": fmean(ages), "staleness/max": max(ages), **shares} if ages else {}


def _sample_metrics(samples: Sequence[Sample]) -> Iterator[tuple[str, float]]:
    if not samples:
        return
    yield from _mean_min_max("critic/rewards", [sample.reward for sample in samples])
    yield from _mean_min_max("critic/advantages", [sample.advantage for sample in samples])
    yield from _mean_min_max("response_length", [float(sample.response_length) for sample in samples])
    yield "response_length/clip_ratio", fmean(sample.finish == "length" for sample in samples)
    parts: defaultdict[str, list[float]] = defaultdict(list)
    for sample in samples:
        for name, value in sample.verdict.parts.items():
            parts[name].append(value)
        if sample.role == "coder":  # how many have a second turn depends on the tester, and so does their mean
            parts[f"turn_{sample.turn}"].append(sample.reward)
    for name, values in parts.items():
        yield f"critic/rewards/{name}/mean", fmean(values)
    for outcome, count in Counter(sample.verdict.outcome for sample in samples).items():
        yield f"judge/outcome/{outcome}", count / len(samples)


def _mean_min_max(name: str, values: Sequence[float]) -> Iterator[tuple[str, float]]:
    yield f"{name}/mean", fmean(values)
    yield f"{name}/min", min(values)
    yield f"{name}/max", max(values)


class StepTimer:
    """Times the stages of a step."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self.seconds_by_stage: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        with activity(name):
            yield
        self.seconds_by_stage[f"timing_s/{name}"] = time.monotonic() - started

    def step_metrics(self, groups: Sequence[Group], rollout: Metrics) -> Metrics:
        """Seconds of each stage and of the whole step, generated tokens per second, and idle shares. `rollout` has the
        seconds of the batch's rollout."""
        total = time.monotonic() - self._started
        tokens = sum(sample.response_length for group in groups for sample in (*group.samples, *group.unjudged))
        stages = self.seconds_by_stage
        return {
            **stages,
            "timing_s/step": total,
            "perf/tokens_per_s": tokens / total,
            "perf/idle/trainer": _share(stages.get("timing_s/wait", 0.0), total),
            "perf/idle/engine": _share(rollout.get("timing_s/idle_engine", 0.0), total),
        }


def _share(seconds: float, total: float) -> float:
    return min(1.0, seconds / total)  # an engine may have waited since the step before
