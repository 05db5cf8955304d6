"""Advantages where several models play one problem: samples are compared with those of the same role and turn only."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dojang.protocols import Algorithm, Average, TokenBatch, TokenLoss
from dojang.types import Group, Metrics

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ByRole"]

_ELSEWHERE = "asked of each model's own algorithm, by its trainer"


class ByRole:
    """An Algorithm made of one for each role, all with the same settings: what the loop asks. Losses are the business
    of each model's trainer, which has its own. Not for algorithms with a critic."""

    def __init__(self, algorithms: Mapping[str, Algorithm]) -> None:
        self._algorithms = algorithms
        self._first = next(iter(algorithms.values()))

    @property
    def loss_aggregation(self) -> Average:
        return self._first.loss_aggregation

    @property
    def max_resample_rounds(self) -> int:
        return self._first.max_resample_rounds

    @property
    def needs_reference(self) -> bool:
        return self._first.needs_reference

    @property
    def needs_old(self) -> bool:
        return self._first.needs_old

    @property
    def needs_limit(self) -> bool:
        return self._first.needs_limit

    @property
    def trains_zero_advantage(self) -> bool:
        return self._first.trains_zero_advantage

    @property
    def loss_needs_reference(self) -> bool:
        return getattr(self._first, "loss_needs_reference", self._first.needs_reference)

    @property
    def kl_in_reward(self) -> float:
        return getattr(self._first, "kl_in_reward", 0.0)

    def penalise(
        self, groups: Sequence[Group], logprobs: Sequence[Sequence[float]], ref_logprobs: Sequence[Sequence[float]]
    ) -> tuple[list[Group], Metrics]:
        first: Any = self._first  # one with kl_in_reward has it
        found: tuple[list[Group], Metrics] = first.penalise(groups, logprobs, ref_logprobs)
        return found

    @property
    def needs_critic(self) -> bool:
        return False

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

    def limit(self, delta_N: "Tensor", advantage_N: "Tensor") -> tuple[float, Metrics]:
        raise NotImplementedError(_ELSEWHERE)

    def loss(self, batch: TokenBatch) -> TokenLoss:
        raise NotImplementedError(_ELSEWHERE)

    def trace(self, groups: Sequence[Group]) -> list[Group]:
        raise NotImplementedError(_ELSEWHERE)

    def value_loss(
        self, value_BT: "Tensor", old_value_BT: "Tensor", return_BT: "Tensor", mask_BT: "Tensor"
    ) -> TokenLoss:
        raise NotImplementedError(_ELSEWHERE)


def _by_turn(group: Group, role: str) -> list[list[int]]:
    """Places of a role's samples in its group, those of the same turn together."""
    turns: dict[int, list[int]] = {}
    for place, sample in enumerate(group.samples):
        if sample.role == role:
            turns.setdefault(sample.turn, []).append(place)
    return [turns[turn] for turn in sorted(turns)]
