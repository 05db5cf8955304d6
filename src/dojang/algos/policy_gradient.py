"""Policy-gradient base: advantages, a surrogate per token, importance corrections and a KL penalty.

    loss_t = correction_t * surrogate_t + kl_coef * KL_t

Each algorithm has its own surrogate; the rest is set by configuration. Nothing here divides by a number of tokens or
samples: the trainer does, over the whole optimizer step, by `loss_aggregation`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from dojang.algos import advantages
from dojang.algos.entropy import EntropyBonus, EntropyConfig
from dojang.algos.importance_correction import Correction
from dojang.algos.kl import Estimator, kl_divergence
from dojang.algos.reward_kl import Penalty, penalise
from dojang.algos.safe_exp import safe_exp
from dojang.core.section import Section
from dojang.protocols import LossAggregation, Requirements, TokenBatch, TokenLoss
from dojang.types import Group, Metrics, Sample

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PolicyGradient", "PolicyGradientConfig"]


class PolicyGradientConfig(Section):
    """Settings of all policy-gradient algorithms, and the methods that a subclass overrides."""

    advantage: advantages.Estimator = "grpo"
    """Advantage estimator (docs/algorithms.md)."""
    reward_weights: dict[str, float] = Field(default_factory=dict)
    """Weights of the reward terms in GDPO, by name; terms not named keep their weight in the task's reward. Only with
    `advantage` gdpo."""
    whiten_advantages: bool = False
    """Whiten advantages over the batch: after `advantage`, subtract their mean over all trained tokens of the step and
    divide by their standard deviation. Groups of zeros do not count."""
    loss_aggregation: LossAggregation = "tokens"
    """Loss aggregation. tokens: mean over all tokens. sequences: mean over samples of each sample's token mean.
    constant: mean over samples of each sample's sum divided by rollout.max_tokens."""
    kl_coef: float = Field(default=0.0, ge=0)
    """KL coefficient: weight of the KL penalty to the reference model in the loss; 0 needs no reference model."""
    kl_estimator: Estimator = "k3"
    """KL estimator: k1, k2, k3, or k3+, which has k3's value and the gradient of the KL itself."""
    use_bias_correction_kl: bool = False
    """Multiply the KL penalty by the importance ratio (DeepSeek-V3.2's unbiased KL, TRL's use_bias_correction_kl): its
    gradient is then that of the KL itself, also off-policy. For kl_estimator k1 and k3."""
    kl_in_reward: float = Field(default=0.0, ge=0)
    """KL coefficient in the reward (veRL's use_kl_in_reward): each token's KL to the reference, times this, is
    subtracted from the reward before advantages are computed; 0 disables it."""
    kl_penalty: Penalty = "kl"
    """KL penalty in the reward, by veRL's names: kl (k1), abs, mse (k2) or low_var_kl (k3)."""
    entropy: EntropyConfig = EntropyConfig()
    old_logprobs: Literal["behaviour", "trainer"] = "behaviour"
    """Old log-probs in the denominator of importance ratios. behaviour: the engine's at sampling time, however old.
    trainer: the trainer's own before the first update on a batch; `corrections` handle the difference."""
    corrections: tuple[Correction, ...] = ()
    """Importance corrections for the mismatch between the engine's and the trainer's probabilities, by weights or
    rejection (docs/algorithms.md). All but opsm need old_logprobs=trainer."""
    overlong_buffer_fraction: float = Field(default=0.0, ge=0, le=1)
    """DAPO overlong shaping: fraction of rollout.max_tokens at the end over which a length penalty ramps up; 0 disables
    it."""
    overlong_penalty: float = Field(default=1.0, ge=0)
    """Length penalty of overlong shaping at max_tokens."""
    max_resample_rounds: int = Field(default=0, ge=0)
    """Dynamic sampling (DAPO): maximum number of rounds in which a step draws more prompts to replace groups with equal
    rewards; 0 disables it."""

    @model_validator(mode="after")
    def _parts_are_used(self) -> Self:
        if self.reward_weights and self.advantage != "gdpo":
            raise ValueError(
                f"reward_weights={self.reward_weights} has no effect with advantage={self.advantage}, which uses the "
                "whole reward; set advantage=gdpo, or change the weights of the task's rewards"
            )
        if "overlong" in self.reward_weights and not self.overlong_buffer_fraction:
            raise ValueError(
                f"reward_weights has overlong={self.reward_weights['overlong']:g}, a weight of the length penalty, but "
                "overlong_buffer_fraction=0 turns that off; set it above 0, or leave the weight out"
            )
        return self

    @model_validator(mode="after")
    def _maxrl_is_not_negative(self) -> Self:
        if self.advantage == "maxrl" and self.overlong_buffer_fraction and self.overlong_penalty:
            raise ValueError(
                f"overlong_buffer_fraction={self.overlong_buffer_fraction:g} makes rewards negative, and "
                "advantage=maxrl needs rewards of at least 0; set it to 0"
            )
        return self

    @model_validator(mode="after")
    def _corrections_have_two_policies(self) -> Self:
        blind = [each.name for each in self.corrections if each.name != "opsm"]
        if blind and self.old_logprobs == "behaviour":
            raise ValueError(
                f"corrections {', '.join(blind)} compare the trainer's log-probs with the engine's, which are the same "
                "with old_logprobs=behaviour; set old_logprobs=trainer"
            )
        return self

    @property
    def needs_group(self) -> bool:
        """Whether advantages compare samples within a group, not with the whole batch."""
        return self.advantage not in ("reinforce++", "reinforce++-tokens")

    @property
    def trains_zero_advantage(self) -> bool:
        """Whether a token with advantage 0 still has a gradient. A loss with further terms overrides this."""
        return self.kl_coef > 0 or self.entropy.enabled

    @model_validator(mode="after")
    def _kl_makes_sense(self) -> Self:
        if self.use_bias_correction_kl and self.kl_coef == 0:
            raise ValueError("use_bias_correction_kl=true has no effect without a KL penalty; set kl_coef above 0")
        if self.use_bias_correction_kl and self.kl_estimator not in ("k1", "k3"):
            raise ValueError(
                f"use_bias_correction_kl=true does not make kl_estimator={self.kl_estimator} unbiased; use k1 or k3"
            )
        if self.kl_in_reward and self.max_resample_rounds:
            raise ValueError(
                f"kl_in_reward={self.kl_in_reward:g} makes all rewards differ, so "
                f"max_resample_rounds={self.max_resample_rounds} would find no "
                "group to replace; set max_resample_rounds to 0, or use kl_coef instead"
            )
        if self.kl_in_reward and self.advantage in ("gdpo", "maxrl"):
            raise ValueError(
                f"kl_in_reward={self.kl_in_reward:g} cannot be combined with advantage={self.advantage}, which needs "
                "rewards as the task gives them; use kl_coef instead"
            )
        return self

    def make(self, max_tokens: int) -> "PolicyGradient":
        """Makes the algorithm with these settings, for completions of at most `max_tokens` tokens."""
        return PolicyGradient(self, max_tokens)

    def surrogate(self, batch: TokenBatch, delta_BT: "Tensor") -> "tuple[Tensor, Tensor]":
        """Returns the loss of each token from its log-ratio, and where its gradient is cut."""
        raise NotImplementedError

    def limit(self, delta_N: "Tensor", advantage_N: "Tensor") -> tuple[float, Metrics] | None:
        """Overridden by algorithms that need all tokens of an optimizer step first: see Algorithm.limit."""
        return None


class PolicyGradient:
    """The Algorithm of all policy-gradient losses."""

    def __init__(self, config: PolicyGradientConfig, max_tokens: int) -> None:
        self.config = config
        self._max_tokens = max_tokens
        self.entropy_bonus = EntropyBonus(config.entropy) if config.entropy.enabled else None

    @property
    def loss_aggregation(self) -> LossAggregation:
        return self.config.loss_aggregation

    @property
    def max_resample_rounds(self) -> int:
        return self.config.max_resample_rounds

    @property
    def requirements(self) -> Requirements:
        config = self.config
        return Requirements(
            ref_logprobs=config.kl_coef > 0,
            kl_in_reward=config.kl_in_reward,
            old_logprobs=config.old_logprobs == "trainer",
            limit=type(config).limit is not PolicyGradientConfig.limit,
            zero_advantage=config.trains_zero_advantage,
        )

    def penalise(
        self, groups: Sequence[Group], logprobs: Sequence[Sequence[float]], ref_logprobs: Sequence[Sequence[float]]
    ) -> tuple[list[Group], Metrics]:
        return penalise(groups, logprobs, ref_logprobs, self.config.kl_in_reward, self.config.kl_penalty)

    def advantages(self, groups: Sequence[Group]) -> list[tuple[float, ...]]:
        lengths = [[sample.response_length for sample in group.samples] for group in groups]
        if self.config.advantage == "gdpo":
            found = advantages.gdpo([[self._terms(sample) for sample in group.samples] for group in groups])
        else:
            found = advantages.ESTIMATORS[self.config.advantage](list(map(self._rewards, groups)), lengths)
        if self.config.whiten_advantages:
            found = advantages.whiten_tokens(found, lengths)
        return [tuple(each) for each in found]

    def limit(self, delta_N: "Tensor", advantage_N: "Tensor") -> tuple[float, Metrics]:
        found = self.config.limit(delta_N, advantage_N)
        assert found is not None, "called only with requirements.limit"
        return found

    def loss(self, batch: TokenBatch) -> TokenLoss:
        import torch  # imported here, so that reading a configuration loads no torch

        mask_BT = batch.mask_BT
        # Outside the mask log-probs are meaningless; a zero difference keeps everything finite there.
        delta_BT = torch.where(mask_BT, batch.logp_BT - batch.old_logp_BT, 0.0)
        surrogate_BT, cut_BT = self.config.surrogate(batch, delta_BT)
        figures: dict[str, Tensor] = {
            "actor/pg_loss": surrogate_BT,
            "actor/ppo_kl": -delta_BT,
            "actor/pg_clipfrac": cut_BT.to(delta_BT.dtype),
        }
        loss_BT = surrogate_BT
        for each in self.config.corrections:
            weight_BT = each.weight(batch)
            loss_BT = loss_BT * weight_BT
            figures[f"actor/correction/{each.name}"] = weight_BT.expand_as(delta_BT)
        if batch.ref_logp_BT is not None:
            gap_BT = torch.where(mask_BT, batch.logp_BT - batch.ref_logp_BT, 0.0)
            kl_BT = kl_divergence(gap_BT, self.config.kl_estimator)
            if self.config.use_bias_correction_kl:
                kl_BT = kl_BT * safe_exp(delta_BT)
            figures["actor/kl_loss"] = kl_BT
            loss_BT = loss_BT + self.config.kl_coef * kl_BT
        return TokenLoss(loss_BT=torch.where(mask_BT, loss_BT, 0.0), figures=figures)

    def _rewards(self, group: Group) -> list[float]:
        """Rewards with the length penalty. Groups with equal rewards get none, since DAPO filters them out."""
        rewards = [sample.reward + sum(sample.token_rewards.tolist()) for sample in group.samples]
        if len(rewards) > 1 and len(set(rewards)) < 2:
            return rewards
        return [reward + self._overlong(sample) for reward, sample in zip(rewards, group.samples, strict=True)]

    def _overlong(self, sample: Sample) -> float:
        """DAPO's soft overlong punishment: 0 before the buffer, linearly down to -overlong_penalty at max_tokens."""
        if not self.config.overlong_buffer_fraction:
            return 0.0
        part = self.config.overlong_buffer_fraction * self._max_tokens
        over = sample.response_length - (self._max_tokens - part)
        return -self.config.overlong_penalty * max(0.0, over) / part

    def _terms(self, sample: Sample) -> dict[str, tuple[float, float]]:
        """Weight and value of each reward term; `reward_weights` replaces the task's weights."""
        verdict, reward = sample.verdict, sample.reward  # raises for an unjudged sample, which must not get here
        parts = verdict.parts or {"reward": reward}
        terms = dict(verdict.terms or {name: (1.0, value) for name, value in parts.items()})
        if self.config.overlong_buffer_fraction:
            terms["overlong"] = (1.0, self._overlong(sample))
        return {name: (self.config.reward_weights.get(name, weight), value) for name, (weight, value) in terms.items()}
