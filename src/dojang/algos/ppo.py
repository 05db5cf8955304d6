"""PPO with a learned critic and generalised advantage estimation (arXiv 1707.06347, 1506.02438).

delta_t = r_t + gamma V_{t+1} - V_t            r: the reward, at the last token, minus each token's KL penalty
                                               V: the critic's value, 0 after the last token
A_t     = delta_t + gamma lam A_{t+1}          generalised advantage estimation
G_t     = A_t + V_t                            returns, the critic's target; A is whitened after that

L_t     = -min(r_t A_t, clip(r_t, 1 - low, 1 + high) A_t)                    policy loss, r_t: the ratio
L_t     = max((V_t - G_t)^2, (clip(V_t, Vold_t - c, Vold_t + c) - G_t)^2) / 2        value loss

A truncated completion ends like any other, without bootstrapping: it is never continued.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pydantic import Field, field_validator

from dojang.algos.grpo import ClipConfig
from dojang.algos.policy_gradient import PolicyGradient
from dojang.protocols import Requirements, TokenLoss
from dojang.types import Group, Sample

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Ppo", "PpoConfig", "compute_gae"]

_EPS = 1e-8


class PpoConfig(ClipConfig):
    """Proximal policy optimization with a critic."""

    name: Literal["ppo"] = "ppo"
    advantage: Literal["reinforce++"] = "reinforce++"
    """Only recorded with the sample: token advantages come from the critic."""
    max_resample_rounds: int = Field(default=0, ge=0)
    """Always 0: the critic trains on all groups."""
    whiten_advantages: bool = False
    """Always false: `whiten` normalises the critic's advantages."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount factor per token."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """GAE lambda: 1 uses the full return, 0 the one-step TD error."""
    value_clip: float = Field(default=0.2, ge=0)
    """Value clip: largest change of a value from before the first update until its gradient is cut; 0 disables it."""
    whiten: bool = True
    """Whiten the advantages of all tokens of a step to mean 0 and standard deviation 1."""

    @field_validator("max_resample_rounds")
    @classmethod
    def _no_resampling(cls, max_resample_rounds: int) -> int:
        if max_resample_rounds:
            raise ValueError(f"{max_resample_rounds} is above 0, but ppo trains its critic on all groups; set it to 0")
        return max_resample_rounds

    @field_validator("whiten_advantages")
    @classmethod
    def _whitened_by_whiten(cls, whiten_advantages: bool) -> bool:
        if whiten_advantages:
            raise ValueError("true, but ppo whitens the advantages of its critic by algo.whiten; leave it out")
        return whiten_advantages

    def make(self, max_tokens: int) -> "Ppo":
        return Ppo(self, max_tokens)


class Ppo(PolicyGradient):
    """The clipped surrogate with the critic's token advantages."""

    config: PpoConfig

    @property
    def requirements(self) -> Requirements:
        # Advantages are per token, and the critic trains on every completion.
        return replace(super().requirements, critic=True, zero_advantage=True)

    def compute_gae(self, groups: Sequence[Group]) -> list[Group]:
        found = [replace(group, samples=tuple(map(self._with_gae, group.samples))) for group in groups]
        return _whiten(found) if self.config.whiten else found

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

    def _with_gae(self, sample: Sample) -> Sample:
        """Sets advantages and returns. The length penalty applies in every group: the critic sees one completion."""
        values = sample.sampled(sample.values)
        rewards = sample.sampled(sample.token_rewards) if sample.token_rewards.size else [0.0] * len(values)
        if rewards:
            rewards[-1] += sample.reward + self._overlong(sample)
        advantages = compute_gae(values, rewards, self.config.gamma, self.config.lam)
        returns = [advantage + value for advantage, value in zip(advantages, values, strict=True)]
        return replace(sample, advantages=sample.at_mask(advantages), returns=sample.at_mask(returns))


def compute_gae(values: Sequence[float], rewards: Sequence[float], gamma: float, lam: float) -> list[float]:
    """GAE: advantages of a completion's tokens from the critic's values and the rewards of the tokens."""
    found = [0.0] * len(values)
    value = advantage = 0.0  # of the next token
    for place in reversed(range(len(values))):
        delta = rewards[place] + gamma * value - values[place]
        value, advantage = values[place], delta + gamma * lam * advantage
        found[place] = advantage
    return found


def _whiten(groups: Sequence[Group]) -> list[Group]:
    everything = [each for group in groups for sample in group.samples for each in sample.sampled(sample.advantages)]
    mean, scale = 0.0, math.inf  # equal advantages become 0
    if len(set(everything)) > 1:
        mean = math.fsum(everything) / len(everything)
        scale = math.sqrt(math.fsum((each - mean) ** 2 for each in everything) / (len(everything) - 1)) + _EPS

    def white(sample: Sample) -> Sample:
        scaled = [(each - mean) / scale for each in sample.sampled(sample.advantages)]
        return replace(sample, advantages=sample.at_mask(scaled))

    return [replace(group, samples=tuple(map(white, group.samples))) for group in groups]
