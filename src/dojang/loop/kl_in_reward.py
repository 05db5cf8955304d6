"""KL in the reward: log-probs of policy and reference for algorithms that subtract a penalty from rewards."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from dojang.protocols import Algorithm, Trainer
from dojang.types import Group, Metrics

__all__ = ["PenalisesRewards", "penalise"]


@runtime_checkable
class PenalisesRewards(Protocol):
    """An Algorithm that may have a KL penalty in the reward."""

    @property
    def kl_in_reward(self) -> float:
        """KL coefficient in the reward: if above 0, `penalise` is asked."""

    def penalise(
        self, groups: Sequence[Group], logprobs: Sequence[Sequence[float]], ref_logprobs: Sequence[Sequence[float]]
    ) -> tuple[list[Group], Metrics]:
        """The groups with the KL penalty as rewards of tokens, and figures. Log-probs are those of the policy and of
        the reference, of all samples in order."""


async def penalise(algorithm: Algorithm, trainer: Trainer, groups: Sequence[Group]) -> tuple[Sequence[Group], Metrics]:
    """The same groups with a KL penalty in the reward, if the algorithm has one."""
    if not isinstance(algorithm, PenalisesRewards) or not algorithm.kl_in_reward:
        return groups, {}
    samples = [sample for group in groups for sample in group.samples]
    logprobs = await trainer.score(samples)
    return algorithm.penalise(groups, logprobs, await trainer.ref_logprobs(samples))
