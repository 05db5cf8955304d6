"""Importance corrections for the mismatch between the sampling distribution (mu) and the trainer's policy (old).

An engine with other kernels or older weights does not sample exactly from the policy that is trained. With rho = old /
mu of a token, and its product or geometric mean over a sequence:

    token_tis           min(rho, cap)                                       truncated importance sampling
    sequence_tis        min(product of rho, cap)
    sequence_mis        product of rho, 0 where it is above cap             masked importance sampling
    icepop              rho, 0 where it is not within low and high
    token_rejection     1, 0 where rho is not within low and high           rejection, without an importance weight
    sequence_rejection  1, 0 where the product of rho is above cap
    geometric           1, 0 where the geometric mean of rho is not within low and high
    opsm                1, 0 for a sequence with a negative advantage where mean(log mu - log policy) > delta

A weight multiplies the policy loss and has no gradient. Several weights are multiplied. All but opsm compare the
trainer's own log-probs with mu, so they need algo.old_logprobs=trainer.
"""

import math
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from dojang.algos.safe_exp import safe_exp
from dojang.core.section import Section
from dojang.protocols import TokenBatch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "Correction",
    "Geometric",
    "IcePop",
    "Opsm",
    "SequenceMis",
    "SequenceRejection",
    "SequenceTis",
    "TokenRejection",
    "TokenTis",
    "sequence_mean",
]


class TokenTis(Section):
    """Truncated importance sampling per token."""

    name: Literal["token_tis"] = "token_tis"
    cap: float = Field(default=2.0, gt=0)
    """Upper clip of the importance weight."""

    def weight(self, batch: TokenBatch) -> "Tensor":
        return safe_exp(_rho(batch)).clamp(max=self.cap)


class SequenceTis(Section):
    """Truncated importance sampling per sequence."""

    name: Literal["sequence_tis"] = "sequence_tis"
    cap: float = Field(default=2.0, gt=0)
    """Upper clip of the importance weight of a sequence, the product of its tokens' ratios."""

    def weight(self, batch: TokenBatch) -> "Tensor":
        return safe_exp(_rho(batch).sum(-1, keepdim=True)).clamp(max=self.cap)


class SequenceRejection(Section):
    """Rejection of sequences by the product of their ratios, without an importance weight."""

    name: Literal["sequence_rejection"] = "sequence_rejection"
    cap: float = Field(default=3.0, gt=0)
    """Largest accepted product of a sequence's ratios."""

    def weight(self, batch: TokenBatch) -> "Tensor":
        rho_BT = _rho(batch)
        return (rho_BT.sum(-1, keepdim=True) <= math.log(self.cap)).to(rho_BT.dtype)


class SequenceMis(SequenceRejection):
    """Masked importance sampling per sequence: the importance weight, or 0 above the cap."""

    name: Literal["sequence_mis"] = "sequence_mis"  # type: ignore[assignment]

    def weight(self, batch: TokenBatch) -> "Tensor":
        return super().weight(batch) * safe_exp(_rho(batch).sum(-1, keepdim=True))


class _RatioBounds(Section):
    low: float = Field(gt=0)
    """Smallest accepted ratio."""
    high: float = Field(gt=0)
    """Largest accepted ratio."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low={self.low} must be below high={self.high}")
        return self


class Geometric(_RatioBounds):
    """Rejection of sequences by the geometric mean of their ratios."""

    name: Literal["geometric"] = "geometric"
    low: float = Field(default=0.99, gt=0)
    high: float = Field(default=1.01, gt=0)

    def weight(self, batch: TokenBatch) -> "Tensor":
        rho_BT = _rho(batch)
        mean_B1 = sequence_mean(rho_BT, batch)
        return ((mean_B1 >= math.log(self.low)) & (mean_B1 <= math.log(self.high))).to(rho_BT.dtype)


class TokenRejection(_RatioBounds):
    """Rejection of tokens by their ratio, without an importance weight."""

    name: Literal["token_rejection"] = "token_rejection"
    low: float = Field(default=0.5, gt=0)
    high: float = Field(default=5.0, gt=0)

    def weight(self, batch: TokenBatch) -> "Tensor":
        rho_BT = _rho(batch)
        return ((rho_BT >= math.log(self.low)) & (rho_BT <= math.log(self.high))).to(rho_BT.dtype)


class IcePop(TokenRejection):
    """IcePop: the importance weight of a token, or 0 if it is not within bounds."""

    name: Literal["icepop"] = "icepop"  # type: ignore[assignment]

    def weight(self, batch: TokenBatch) -> "Tensor":
        return super().weight(batch) * safe_exp(_rho(batch))


class Opsm(Section):
    """Off-policy sequence masking: masks sequences with A < 0 that the policy has already moved away from."""

    name: Literal["opsm"] = "opsm"
    delta: float = Field(default=0.1, gt=0)
    """Threshold on mean(log mu - log policy) per token, above which a sequence with A < 0 is masked."""

    def weight(self, batch: TokenBatch) -> "Tensor":
        import torch

        gap_BT = torch.where(batch.mask_BT, batch.behaviour_logp_BT - batch.logp_BT.detach(), 0.0)
        left_B1 = sequence_mean(gap_BT, batch) > self.delta
        bad_B1 = sequence_mean(torch.where(batch.mask_BT, batch.advantage_BT, 0.0), batch) < 0
        return (~(left_B1 & bad_B1)).to(gap_BT.dtype)


Correction = Annotated[
    TokenTis | SequenceTis | SequenceMis | IcePop | TokenRejection | SequenceRejection | Geometric | Opsm,
    Field(discriminator="name"),
]


def _rho(batch: TokenBatch) -> "Tensor":
    """Returns log(old / mu) without gradient; 0 outside the mask."""
    import torch

    gap_BT = batch.old_logp_BT.detach() - batch.behaviour_logp_BT
    return torch.where(batch.mask_BT, gap_BT, 0.0)


def sequence_mean(value_BT: "Tensor", batch: TokenBatch) -> "Tensor":
    """Mean over the tokens of each sequence, [B, 1]; values outside the mask must be 0."""
    return value_BT.sum(-1, keepdim=True) / batch.mask_BT.sum(-1, keepdim=True).clamp(min=1)
