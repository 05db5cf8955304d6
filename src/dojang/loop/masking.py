"""Masking of truncated completions: those cut off at max_tokens take no part in the loss."""

from collections.abc import Sequence
from dataclasses import replace

from dojang.types import Group, Sample

__all__ = ["mask_truncated"]


def mask_truncated(groups: Sequence[Group]) -> list[Group]:
    """The same groups without trained tokens in completions cut off at max_tokens. Their advantages stay, and so does
    their part in those of the others: it is the loss that leaves them out."""
    return [replace(group, samples=tuple(map(_masked, group.samples))) for group in groups]


def _masked(sample: Sample) -> Sample:
    return replace(sample, mask=(False,) * len(sample.mask)) if sample.finish == "length" else sample
