"""Masking of truncated completions: those cut off at max_tokens take no part in the loss."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from dojang.types import Group, Sample

__all__ = ["mask_truncated", "warn_if_all_are_masked"]

logger = logging.getLogger(__name__)


def mask_truncated(groups: Sequence[Group]) -> list[Group]:
    """The same groups without trained tokens in completions cut off at max_tokens. Their advantages stay, and so does
    their part in those of the others: it is the loss that leaves them out."""
    return [replace(group, samples=tuple(map(_masked, group.samples))) for group in groups]


def _masked(sample: Sample) -> Sample:
    return replace(sample, mask=(False,) * len(sample.mask)) if sample.finish == "length" else sample


def warn_if_all_are_masked(groups: Sequence[Group], warned: set[str]) -> None:
    """Log a warning, once, if no completion of a batch is left to train on; `warned` remembers it."""
    samples = [sample for group in groups for sample in group.samples]
    if not samples or any(any(sample.mask) for sample in samples) or "all truncated" in warned:
        return
    warned.add("all truncated")
    logger.warning(
        "all %d completions of a batch were cut off at rollout.max_tokens and are masked "
        "(train.mask_truncated_completions), so it trains nothing; raise rollout.max_tokens. Watch "
        "response_length/clip_ratio: later batches like this one are not logged",
        len(samples),
    )
