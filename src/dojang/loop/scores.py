"""Accuracy, pass@k and mean reward of an evaluation, with confidence intervals.

Every problem counts once, however many of its samples were judged.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from dojang.core.errors import HealthError
from dojang.loop.statistics import interval, pass_at_k
from dojang.types import Group, Outcome

__all__ = ["Answered", "Estimate", "Graded", "Scores"]


class Graded(Protocol):
    """A sample with its verdict: a line of samples.jsonl, or the sample of a group."""

    @property
    def prompt_index(self) -> int: ...
    @property
    def problem(self) -> str: ...
    @property
    def tier(self) -> str: ...
    @property
    def outcome(self) -> str: ...
    @property
    def reward(self) -> float | None: ...
    @property
    def parts(self) -> Mapping[str, float]: ...
    @property
    def completion_tokens(self) -> int: ...
    @property
    def detail(self) -> str: ...


@dataclass(frozen=True, slots=True)
class _GradedSample:
    prompt_index: int
    problem: str
    tier: str
    outcome: str
    reward: float | None
    parts: Mapping[str, float]
    completion_tokens: int
    detail: str


@dataclass(frozen=True, slots=True)
class Answered:
    """Result of one problem."""

    id: str
    tier: str
    samples: int
    """Judged samples."""
    right: int
    reward: float
    """Mean reward of the judged samples."""
    length: float
    """Mean length in tokens of the judged samples."""

    @property
    def accuracy(self) -> float:
        return self.right / self.samples


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over problems with its 95% interval."""

    value: float
    low: float
    high: float
    problems: int
    method: str
    """Method of the interval."""

    @classmethod
    def of(cls, answers: Sequence[Answered], value: Callable[[Answered], float]) -> "Estimate":
        values = [value(each) for each in answers]
        found = interval(values)
        return cls(_mean(values), found.low, found.high, len(values), found.method)


@dataclass(frozen=True)
class Scores:
    """An evaluation on one dataset."""

    answers: tuple[Answered, ...]
    outcomes: Mapping[str, float]
    """Fraction of judged samples by outcome."""
    judge_errors: int
    """Samples that could not be judged; they do not count."""

    parts: Mapping[str, float] = field(default_factory=dict)
    """Mean of each part of the reward, over the judged samples that have it."""

    @classmethod
    def of(cls, groups: Sequence[Group]) -> "Scores":
        """Computes the scores; raises HealthError if nothing could be judged."""
        return cls.of_samples(
            _GradedSample(
                index,
                group.problem.id,
                group.problem.tier,
                sample.verdict.outcome,
                sample.verdict.reward,
                sample.verdict.parts,
                sample.response_length,
                sample.verdict.detail,
            )
            for index, group in enumerate(groups)
            for sample in (*group.samples, *group.unjudged)
        )

    @classmethod
    def of_samples(cls, samples: Iterable[Graded]) -> "Scores":
        """Computes the scores of samples; raises HealthError if none could be judged."""
        every = sorted(samples, key=lambda each: each.prompt_index)
        judged = [each for each in every if each.reward is not None]
        if not judged:
            failure = every[-1].detail if every else "there were no completions"
            raise HealthError(f"no completion of the evaluation could be judged; the last failure was: {failure}")
        outcomes = Counter(str(each.outcome) for each in judged)
        names = dict.fromkeys(name for each in judged for name in each.parts)
        return cls(
            tuple(_answered(list(some)) for _, some in itertools.groupby(judged, lambda each: each.prompt_index)),
            {name: count / outcomes.total() for name, count in outcomes.most_common()},
            len(every) - len(judged),
            {name: _mean(each.parts[name] for each in judged if name in each.parts) for name in names},
        )

    @property
    def score(self) -> float:
        """Mean accuracy over the problems."""
        return _mean(each.accuracy for each in self.answers)

    @property
    def reward(self) -> float:
        """Mean reward over the problems."""
        return _mean(each.reward for each in self.answers)

    @property
    def length(self) -> float:
        return _mean(each.length for each in self.answers)

    @property
    def accuracy(self) -> Estimate:
        return Estimate.of(self.answers, lambda each: each.accuracy)

    def pass_at(self, k: int) -> Estimate | None:
        """pass@k over the problems with at least k judged samples; None if there are none."""
        enough = [each for each in self.answers if each.samples >= k]
        return Estimate.of(enough, lambda each: pass_at_k(each.samples, each.right, k)) if enough else None

    @property
    def tiers(self) -> dict[str, Estimate]:
        names = sorted({each.tier for each in self.answers if each.tier})
        members = {name: [each for each in self.answers if each.tier == name] for name in names}
        return {name: Estimate.of(answers, lambda each: each.accuracy) for name, answers in members.items()}

    def as_json(self, ks: Sequence[int]) -> dict[str, Any]:
        found = {k: estimate for k in ks if (estimate := self.pass_at(k)) is not None}
        return {
            "accuracy": asdict(self.accuracy),
            "pass_at": {str(k): asdict(estimate) for k, estimate in found.items()},
            "tiers": {name: asdict(estimate) for name, estimate in self.tiers.items()},
            "outcomes": dict(self.outcomes),
            "judge_errors": self.judge_errors,
            "reward": self.reward,
            "parts": dict(self.parts),
            "length": self.length,
        }


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def _answered(samples: Sequence[Graded]) -> Answered:
    first = samples[0]
    return Answered(
        first.problem,
        first.tier,
        len(samples),
        sum(each.outcome == Outcome.ACCEPTED for each in samples),
        _mean(each.reward for each in samples if each.reward is not None),
        _mean(each.completion_tokens for each in samples),
    )
