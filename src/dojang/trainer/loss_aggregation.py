"""Loss aggregation: mean of token losses over an optimizer step.

    tokens      sum of all losses / number of tokens
    sequences   sum of each sample's mean / number of samples
    constant    sum of all losses / (number of samples * rollout.max_tokens)

Groups without a gradient count for `constant` only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from dojang.protocols import Algorithm, LossAggregation
from dojang.types import Group, Sample

__all__ = ["Counts", "count", "mean_share"]


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens and samples of an optimizer step: those with a gradient, and all of them."""

    trained_tokens: int
    tokens: int
    trained_samples: int
    samples: int


def count(groups: Sequence[Group], algorithm: Algorithm) -> tuple[Counts, list[Sample], list[Sample]]:
    """Returns the divisors, the samples with a gradient, and those that only count in metrics."""
    trained, others = list[Sample](), list[Sample]()
    for group in groups:
        has_gradient = algorithm.requirements.zero_advantage or group.has_advantage
        (trained if has_gradient else others).extend(each for each in group.samples if each.mask.any())
    tokens = sum(sample.response_length for sample in trained)
    counts = Counts(
        trained_tokens=tokens,
        tokens=tokens + sum(sample.response_length for sample in others),
        trained_samples=len(trained),
        samples=sum(len(group.samples) for group in groups),
    )
    return counts, trained, others


def mean_share(loss_BT: Tensor, mask_BT: Tensor, average: LossAggregation, counts: Counts, max_tokens: int) -> Tensor:
    """Contribution of a micro-batch to the mean over the optimizer step."""
    if average == "tokens":
        return loss_BT.sum() / counts.trained_tokens
    if average == "sequences":
        return (loss_BT.sum(-1) / mask_BT.sum(-1)).sum() / counts.trained_samples
    return loss_BT.sum() / (counts.samples * max_tokens)
