"""KL in the reward: log-probs under policy and reference for algorithms that subtract a KL penalty from rewards."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from dojang.protocols import Algorithm, Trainer
from dojang.types import Group, Metrics

__all__ = ["PenalisesRewards", "penalise"]


@runtime_checkable
class PenalisesRewards(Protocol):
    """An Algorithm with a KL penalty in the reward (Requirements.kl_in_reward)."""

    def penalise(
        self, groups: Sequence[Group], logprobs: Sequence[Sequence[float]], ref_logprobs: Sequence[Sequence[float]]
    ) -> tuple[list[Group], Metrics]:
        """Returns the groups with the KL penalty as token rewards, and metrics. Log-probs under the policy and the
        reference are given for all samples, in order."""


async def penalise(algorithm: Algorithm, trainer: Trainer, groups: Sequence[Group]) -> tuple[Sequence[Group], Metrics]:
    """Returns the groups with the KL penalty in the reward, if the algorithm has one."""
    if not algorithm.requirements.kl_in_reward or not isinstance(algorithm, PenalisesRewards):
        return groups, {}
    samples = [sample for group in groups for sample in group.samples]
    logprobs = await trainer.score(samples)
    return algorithm.penalise(groups, logprobs, await trainer.ref_logprobs(samples))
