"""Masks completions truncated at max_tokens out of the loss."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dojang.types import Group, Sample

__all__ = ["mask_truncated", "warn_if_all_are_masked"]

logger = logging.getLogger(__name__)


def mask_truncated(groups: Sequence[Group]) -> list[Group]:
    """Returns the groups with the masks of truncated completions cleared. Their advantages stay, and they still count
    in the advantages of their group; only the loss leaves them out."""
    return [replace(group, samples=tuple(map(_masked, group.samples))) for group in groups]


def _masked(sample: Sample) -> Sample:
    return replace(sample, mask=np.zeros_like(sample.mask)) if sample.finish == "length" else sample


def warn_if_all_are_masked(groups: Sequence[Group], warned: set[str]) -> None:
    """Logs a warning if all completions of a batch are masked, once per run; `warned` records it."""
    samples = [sample for group in groups for sample in group.samples]
    if not samples or any(sample.mask.any() for sample in samples) or "all truncated" in warned:
        return
    warned.add("all truncated")
    logger.warning(
        "all %d completions of a batch were truncated at rollout.max_tokens and are masked "
        "(train.mask_truncated_completions), so this batch has no gradient; raise rollout.max_tokens. Watch "
        "response_length/clip_ratio: later batches like this one are not logged",
        len(samples),
    )
