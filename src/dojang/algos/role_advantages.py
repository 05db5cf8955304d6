"""Advantages in multi-policy runs: samples are compared only with samples of the same role and turn."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dojang.protocols import Algorithm, LossAggregation, Requirements, TokenBatch, TokenLoss
from dojang.types import Group, Metrics

if TYPE_CHECKING:
    pass

__all__ = ["MultiRoleAlgorithm"]

_ELSEWHERE = "each model's trainer calls its own algorithm for this"


class MultiRoleAlgorithm:
    """The Algorithm that the loop uses in a multi-policy run: one algorithm per role, all with the same settings. Each
    model's trainer has its own for the loss. Not for algorithms with a critic."""

    def __init__(self, algorithms: Mapping[str, Algorithm]) -> None:
        self._algorithms = algorithms
        self._first = next(iter(algorithms.values()))

    @property
    def loss_aggregation(self) -> LossAggregation:
        return self._first.loss_aggregation

    @property
    def max_resample_rounds(self) -> int:
        return self._first.max_resample_rounds

    @property
    def requirements(self) -> Requirements:
        return self._first.requirements

    def penalise(
        self, groups: Sequence[Group], logprobs: Sequence[Sequence[float]], ref_logprobs: Sequence[Sequence[float]]
    ) -> tuple[list[Group], Metrics]:
        first: Any = self._first  # an algorithm with kl_in_reward has it
        found: tuple[list[Group], Metrics] = first.penalise(groups, logprobs, ref_logprobs)
        return found

    def advantages(self, groups: Sequence[Group]) -> list[tuple[float, ...]]:
        found = [[0.0] * len(group.samples) for group in groups]
        for role in dict.fromkeys(sample.role for group in groups for sample in group.samples):
            turns = [(at, places) for at, group in enumerate(groups) for places in _by_turn(group, role)]
            alike = [
                replace(groups[at], samples=tuple(groups[at].samples[place] for place in places), unjudged=())
                for at, places in turns
            ]
            for (at, places), advantages in zip(turns, self._algorithms[role].advantages(alike), strict=True):
                for place, advantage in zip(places, advantages, strict=True):
                    found[at][place] = advantage
        return [tuple(each) for each in found]

    def loss(self, batch: TokenBatch) -> TokenLoss:
        raise NotImplementedError(_ELSEWHERE)


def _by_turn(group: Group, role: str) -> list[list[int]]:
    """Indices of a role's samples in the group, one list per turn."""
    turns: dict[int, list[int]] = {}
    for place, sample in enumerate(group.samples):
        if sample.role == role:
            turns.setdefault(sample.turn, []).append(place)
    return [turns[turn] for turn in sorted(turns)]
