"""Samples -> padded micro-batches of bounded size.

Samples are sorted by length, so that little of a micro-batch is padding. Padding stands on the right, where a
causal model cannot see it: no attention mask is needed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dojang.types import Sample

__all__ = ["MicroBatch", "micro_batches"]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Tokens to read, and for each token to be predicted (all but the first) its mask and behaviour log-prob.

    Only the last `kept` predictions are needed: everything before the first trained token is prompt.
    """

    tokens_BT: Tensor
    mask_BT: Tensor
    old_logp_BT: Tensor
    advantage_B: Tensor
    kept: int
    samples: tuple[Sample, ...]
    """The rows."""


def micro_batches(samples: Sequence[Sample], budget: int, device: torch.device) -> Iterator[MicroBatch]:
    """Split into micro-batches of at most `budget` padded tokens (or one sample, if that alone is longer)."""
    batch: list[Sample] = []
    for sample in sorted(samples, key=lambda sample: len(sample.tokens)):
        if batch and len(sample.tokens) * (len(batch) + 1) > budget:
            yield _collate(batch, device)
            batch = []
        batch.append(sample)
    if batch:
        yield _collate(batch, device)


def _collate(samples: Sequence[Sample], device: torch.device) -> MicroBatch:
    width = max(len(sample.tokens) for sample in samples)
    shape = (len(samples), width)
    tokens = torch.zeros(shape, dtype=torch.long)
    mask = torch.zeros(shape, dtype=torch.bool)
    logp = torch.zeros(shape, dtype=torch.float64)
    for row, sample in enumerate(samples):
        length = len(sample.tokens)
        tokens[row, :length] = torch.tensor(sample.tokens)
        mask[row, :length] = torch.tensor(sample.mask)
        logp[row, :length] = torch.tensor(sample.logprobs, dtype=torch.float64)
    first = min(sample.mask.index(True) for sample in samples)
    kept = width - first
    return MicroBatch(
        tokens_BT=tokens.to(device),
        mask_BT=mask[:, first:].to(device),
        old_logp_BT=logp[:, first:].to(device),
        advantage_B=torch.tensor([sample.advantage for sample in samples], dtype=torch.float64, device=device),
        kept=kept,
        samples=tuple(samples),
    )
