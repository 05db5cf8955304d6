"""What the algorithms of this room share: credit, a surrogate for every token, corrections, a KL term.

    loss_t = weight_t * surrogate_t + kl * KL_t

The surrogate is each algorithm's own, the rest is chosen. Nothing here divides by a number of tokens or samples: the
trainer does, over the whole optimizer step, as `loss_aggregation` says.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from dojang.algos import advantages
from dojang.algos.entropy import EntropyBonus, EntropyConfig
from dojang.algos.importance_correction import Correction
from dojang.algos.kl import Estimator, divergence
from dojang.algos.reward_kl import Penalty, penalise
from dojang.algos.safe_exp import growth
from dojang.core.section import Section
from dojang.protocols import Average, TokenBatch, TokenLoss
from dojang.types import Group, Metrics, Sample

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Policy", "PolicyConfig"]


class PolicyConfig(Section):
    """Settings that all algorithms have, each with its own defaults, and what an algorithm has to say for itself."""

    advantage: advantages.Estimator = "grpo"
    """How rewards become advantages (docs/algorithms.md)."""
    reward_weights: dict[str, float] = Field(default_factory=dict)
    """Reward weights of GDPO, by the name of the part; those not named keep their weight in the task's reward. Only
    with `advantage` gdpo."""
    whiten_advantages: bool = False
    """Whiten advantages over the batch: after `advantage`, subtract their mean over all trained tokens of the step and
    divide by their standard deviation. Groups of zeros do not count."""
    loss_aggregation: Average = "tokens"
    """tokens: the mean over all tokens. sequences: the mean of each sample's mean. constant: the mean of each sample's
    sum, divided by the longest answer allowed."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Weight of the KL penalty to the initial model; 0 keeps no reference model."""
    kl_estimator: Estimator = "k3"
    """How the KL is estimated: k1, k2, k3, or k3+, which has k3's value and the gradient of the KL itself."""
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
    """Old log-probs that ratios are taken to. behaviour: those the tokens were sampled at, however old. trainer: the
    trainer's own, computed before the first update on a batch; what lies between them is left to `corrections`."""
    corrections: tuple[Correction, ...] = ()
    """Corrections for tokens that the engine sampled at other probabilities than the trainer's, by importance weights
    or rejection (docs/algorithms.md). All but opsm need old_logprobs=trainer."""
    overlong_buffer_fraction: float = Field(default=0.0, ge=0, le=1)
    """In the last part of the longest answer allowed, this share of it, rewards fall; 0: they do not."""
    overlong_penalty: float = Field(default=1.0, ge=0)
    """By how much at the end."""
    max_resample_rounds: int = Field(default=0, ge=0)
    """How often, at most, a step poses more problems in the place of those whose samples were all rewarded alike."""

    @model_validator(mode="after")
    def _parts_are_used(self) -> Self:
        if self.reward_weights and self.advantage != "gdpo":
            raise ValueError(
                f"reward_weights={self.reward_weights} has no effect with advantage={self.advantage}, which takes the "
                f"whole reward; set "
                "advantage=gdpo, or change the weights of the task's rewards"
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
                f"advantage=maxrl is defined for rewards of 0 "
                "and more; set it to 0"
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
        """Whether samples are compared with others of the same problem, and not with the whole batch."""
        return self.advantage not in ("reinforce++", "reinforce++-tokens")

    @property
    def trains_zero_advantage(self) -> bool:
        """Whether a token whose advantage is 0 still has a gradient. A loss with further terms overrides this."""
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

    def make(self, longest: int) -> "Policy":
        """The algorithm with these settings, for answers of at most so many tokens."""
        return Policy(self, longest)

    def surrogate(self, batch: TokenBatch, delta_BT: "Tensor") -> "tuple[Tensor, Tensor]":
        """The loss of each token, given its log-ratio, and where its gradient is cut."""
        raise NotImplementedError

    def limit(self, delta_N: "Tensor", advantage_N: "Tensor") -> tuple[float, Metrics] | None:
        """For algorithms that have to see all tokens of an optimizer step first: Algorithm.limit."""
        return None


class Policy:
    """The Algorithm of this room."""

    def __init__(self, config: PolicyConfig, longest: int) -> None:
        self.config = config
        self._longest = longest
        self.entropy_bonus = EntropyBonus(config.entropy) if config.entropy.enabled else None

    @property
    def loss_aggregation(self) -> Average:
        return self.config.loss_aggregation

    @property
    def max_resample_rounds(self) -> int:
        return self.config.max_resample_rounds

    @property
    def needs_reference(self) -> bool:
        return self.config.kl_coef > 0 or self.config.kl_in_reward > 0

    @property
    def loss_needs_reference(self) -> bool:
        return self.config.kl_coef > 0

    @property
    def kl_in_reward(self) -> float:
        return self.config.kl_in_reward

    def penalise(
        self, groups: Sequence[Group], logprobs: Sequence[Sequence[float]], ref_logprobs: Sequence[Sequence[float]]
    ) -> tuple[list[Group], Metrics]:
        return penalise(groups, logprobs, ref_logprobs, self.config.kl_in_reward, self.config.kl_penalty)

    @property
    def needs_old(self) -> bool:
        return self.config.old_logprobs == "trainer"

    @property
    def needs_limit(self) -> bool:
        return type(self.config).limit is not PolicyConfig.limit

    @property
    def trains_zero_advantage(self) -> bool:
        return self.config.trains_zero_advantage

    @property
    def needs_critic(self) -> bool:
        return False

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
        assert found is not None, "only to be asked where needs_limit"
        return found

    def loss(self, batch: TokenBatch) -> TokenLoss:
        import torch  # here, so that reading a configuration loads no torch

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
            kl_BT = divergence(gap_BT, self.config.kl_estimator)
            if self.config.use_bias_correction_kl:
                kl_BT = kl_BT * growth(delta_BT)
            figures["actor/kl_loss"] = kl_BT
            loss_BT = loss_BT + self.config.kl_coef * kl_BT
        return TokenLoss(loss_BT=torch.where(mask_BT, loss_BT, 0.0), figures=figures)

    def trace(self, groups: Sequence[Group]) -> list[Group]:
        return list(groups)

    def value_loss(
        self, value_BT: "Tensor", old_value_BT: "Tensor", return_BT: "Tensor", mask_BT: "Tensor"
    ) -> TokenLoss:
        raise NotImplementedError("only to be asked where needs_critic")

    def _rewards(self, group: Group) -> list[float]:
        """Length only counts among answers that are not all alike otherwise, as DAPO leaves such groups out."""
        rewards = [sample.reward + sum(sample.token_rewards) for sample in group.samples]
        if len(rewards) > 1 and len(set(rewards)) < 2:
            return rewards
        return [reward + self._overlong(sample) for reward, sample in zip(rewards, group.samples, strict=True)]

    def _overlong(self, sample: Sample) -> float:
        """DAPO's soft punishment: 0 as long as an answer is not in the last part, then down to -penalty."""
        if not self.config.overlong_buffer_fraction:
            return 0.0
        part = self.config.overlong_buffer_fraction * self._longest
        over = sample.response_length - (self._longest - part)
        return -self.config.overlong_penalty * max(0.0, over) / part

    def _terms(self, sample: Sample) -> dict[str, tuple[float, float]]:
        """Weight and value of each term of the reward; `parts` has weights that replace the task's."""
        verdict, reward = sample.verdict, sample.reward  # which an unjudged sample lacks: it must not get here
        parts = verdict.parts or {"reward": reward}
        terms = dict(verdict.terms or {name: (1.0, value) for name, value in parts.items()})
        if self.config.overlong_buffer_fraction:
            terms["overlong"] = (1.0, self._overlong(sample))
        return {name: (self.config.reward_weights.get(name, weight), value) for name, (weight, value) in terms.items()}
