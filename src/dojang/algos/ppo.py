"""PPO: a learned critic says, before each token, what was to be expected (arXiv 1707.06347, 1506.02438).

delta_t = r_t + gamma V_{t+1} - V_t            r: the reward, at the last token, less the KL penalty of each token
                                               V: the critic's, 0 after the last token
A_t     = delta_t + gamma lam A_{t+1}          generalised advantage estimation
G_t     = A_t + V_t                            what the critic learns; A is whitened over the batch after that

L_t     = -min(r_t A_t, clip(r_t, 1 - low, 1 + high) A_t)                    the policy's, r_t its ratio
L_t     = max((V_t - G_t)^2, (clip(V_t, Vold_t - c, Vold_t + c) - G_t)^2) / 2        the critic's

An answer that was cut off has ended as any other: it will not be written on, and its reward is what it is.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pydantic import Field, field_validator

from dojang.algos.grpo import ClipConfig
from dojang.algos.policy_gradient import Policy
from dojang.protocols import TokenLoss
from dojang.types import Group, Sample

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Ppo", "PpoConfig", "gae"]

_TINY = 1e-8


class PpoConfig(ClipConfig):
    """Proximal policy optimization with a critic."""

    name: Literal["ppo"] = "ppo"
    advantage: Literal["reinforce++"] = "reinforce++"
    """Only for the record of a sample: tokens are credited by the critic."""
    max_resample_rounds: int = Field(default=0, ge=0)
    """Always 0: where there is a critic all problems teach."""
    whiten_advantages: bool = False
    """Always false: `whiten` normalises the critic's advantages."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """What a reward is worth one token earlier."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """How far advantages look ahead before they trust the critic: 1 to the end, 0 one token."""
    value_clip: float = Field(default=0.2, ge=0)
    """How far a value may move from what it was before the first update until its gradient is cut; 0: any."""
    whiten: bool = True
    """Advantages of all tokens of a step get mean 0 and standard deviation 1."""

    @field_validator("max_resample_rounds")
    @classmethod
    def _all_teach(cls, max_resample_rounds: int) -> int:
        if max_resample_rounds:
            raise ValueError(
                f"{max_resample_rounds} is more than 0, but with ppo there is nothing to refill: all problems teach"
            )
        return max_resample_rounds

    @field_validator("whiten_advantages")
    @classmethod
    def _whitened_by_whiten(cls, whiten_advantages: bool) -> bool:
        if whiten_advantages:
            raise ValueError("true, but ppo whitens the advantages of its critic by algo.whiten; leave it out")
        return whiten_advantages

    def make(self, longest: int) -> "Ppo":
        return Ppo(self, longest)


class Ppo(Policy):
    """The clipped surrogate with the critic's advantages."""

    config: PpoConfig

    @property
    def trains_zero_advantage(self) -> bool:
        return True  # tokens have advantages of their own, and the critic trains on every answer

    @property
    def needs_critic(self) -> bool:
        return True

    def trace(self, groups: Sequence[Group]) -> list[Group]:
        traced = [replace(group, samples=tuple(map(self._traced, group.samples))) for group in groups]
        return _whitened(traced) if self.config.whiten else traced

    def value_loss(
        self, value_BT: "Tensor", old_value_BT: "Tensor", return_BT: "Tensor", mask_BT: "Tensor"
    ) -> TokenLoss:
        import torch

        def error(guess_BT: "Tensor") -> "Tensor":
            return torch.where(mask_BT, guess_BT - return_BT, 0.0).square() / 2

        loss_BT = plain_BT = error(value_BT)
        if clip := self.config.value_clip:
            loss_BT = torch.maximum(plain_BT, error(value_BT.clamp(old_value_BT - clip, old_value_BT + clip)))
        cut_BT = (loss_BT > plain_BT).to(loss_BT.dtype)
        return TokenLoss(loss_BT=loss_BT, figures={"critic/vf_loss": loss_BT, "critic/vf_clipfrac": cut_BT})

    def _traced(self, sample: Sample) -> Sample:
        """Length counts in every group: the critic has to know a reward from the answer alone."""
        values = list(_chosen(sample, sample.values))
        rewards = list(_chosen(sample, sample.token_rewards)) if sample.token_rewards else [0.0] * len(values)
        if rewards:
            rewards[-1] += sample.reward + self._overlong(sample)
        advantages = gae(values, rewards, self.config.gamma, self.config.lam)
        returns = [advantage + value for advantage, value in zip(advantages, values, strict=True)]
        return replace(sample, advantages=_spread(sample, advantages), returns=_spread(sample, returns))


def gae(values: Sequence[float], rewards: Sequence[float], gamma: float, lam: float) -> list[float]:
    """The advantages of an answer's tokens, given what the critic expected before each and the reward of each."""
    found = [0.0] * len(values)
    value = advantage = 0.0  # of the token after
    for place in reversed(range(len(values))):
        delta = rewards[place] + gamma * value - values[place]
        value, advantage = values[place], delta + gamma * lam * advantage
        found[place] = advantage
    return found


def _whitened(groups: Sequence[Group]) -> list[Group]:
    everything = [each for group in groups for sample in group.samples for each in _chosen(sample, sample.advantages)]
    mean, scale = 0.0, math.inf  # if all are alike, none is better than could be expected
    if len(set(everything)) > 1:
        mean = math.fsum(everything) / len(everything)
        scale = math.sqrt(math.fsum((each - mean) ** 2 for each in everything) / (len(everything) - 1)) + _TINY

    def white(sample: Sample) -> Sample:
        scaled = [(each - mean) / scale for each in _chosen(sample, sample.advantages)]
        return replace(sample, advantages=_spread(sample, scaled))

    return [replace(group, samples=tuple(map(white, group.samples))) for group in groups]


def _chosen(sample: Sample, stream: Sequence[float]) -> Iterator[float]:
    """Of the tokens that the model chose."""
    return (each for each, mine in zip(stream, sample.mask, strict=True) if mine)


def _spread(sample: Sample, chosen: Sequence[float]) -> tuple[float, ...]:
    """Numbers of the tokens that the model chose, with 0 for the others."""
    found = iter(chosen)
    return tuple(next(found) if mine else 0.0 for mine in sample.mask)
