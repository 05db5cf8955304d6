"""Graded groups of an evaluation -> figures, and what chance allows to say about them.

Every problem counts once, however many of its attempts could be judged.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dojang.core.errors import HealthError
from dojang.loop.statistics import interval, pass_at_k
from dojang.types import Group, Outcome

__all__ = ["Answered", "Estimate", "Scores"]


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of one problem."""

    id: str
    tier: str
    attempts: int
    """Those that could be judged."""
    right: int
    reward: float
    """The mean of them."""
    length: float
    """Tokens, likewise."""

    @property
    def accuracy(self) -> float:
        return self.right / self.attempts


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over problems with its 95% interval."""

    value: float
    low: float
    high: float
    problems: int
    method: str
    """How the interval is computed."""

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
    """Share of the attempts."""
    judge_errors: int
    """Attempts that could not be judged, and do not count."""

    @classmethod
    def of(cls, groups: Sequence[Group]) -> "Scores":
        """HealthError if nothing could be judged."""
        answers = [_answered(group) for group in groups if group.samples]
        outcomes = Counter(sample.verdict.outcome.value for group in groups for sample in group.samples)
        errors = [error for group in groups for error in group.judge_errors]
        if not answers:
            raise HealthError(f"not one answer of the evaluation could be judged; the last failure was: {errors[-1]}")
        return cls(
            tuple(answers), {name: count / outcomes.total() for name, count in outcomes.most_common()}, len(errors)
        )

    @property
    def score(self) -> float:
        """How often an answer is right, over the problems."""
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
        """Over the problems with at least k attempts, if there are any."""
        enough = [each for each in self.answers if each.attempts >= k]
        return Estimate.of(enough, lambda each: pass_at_k(each.attempts, each.right, k)) if enough else None

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
            "length": self.length,
        }


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def _answered(group: Group) -> Answered:
    samples, count = group.samples, len(group.samples)
    return Answered(
        group.problem.id,
        group.problem.tier,
        count,
        sum(sample.verdict.outcome is Outcome.ACCEPTED for sample in samples),
        _mean(sample.reward for sample in samples),
        _mean(sample.response_length for sample in samples),
    )
