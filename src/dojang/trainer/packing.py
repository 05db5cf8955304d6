"""Samples -> micro-batches without padding: tokens of many samples in one row, prompts they share in it once.

The last token of a sample predicts nothing and is left out. What is learned from is kept apart from what is read: a
matrix with a row for each sample and a column for each token it chose, whatever stood between those.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress

import numpy as np
import torch
from torch import Tensor

from dojang.trainer.flash_attention import Varlen
from dojang.trainer.packed_attention import Attention, Plan, Segment, tensor_of
from dojang.types import Sample

__all__ = ["MicroBatch", "micro_batches"]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What the model reads, N tokens, and what is learned from it, M tokens of B samples."""

    token_N: Tensor
    position_N: Tensor
    plan: Attention
    """Who sees whom."""
    source_M: Tensor
    """The place in the row from which each token is predicted."""
    target_M: Tensor
    """Those tokens, sample by sample."""
    mask_BT: Tensor
    """True for the first so many columns of each sample: where its tokens are."""
    behaviour_logp_BT: Tensor
    old_logp_BT: Tensor
    """The trainer's own before the first update, or else the behaviour's."""
    advantage_BT: Tensor
    samples: tuple[Sample, ...]
    """The rows."""
    idle: bool = False
    """Whether it is only there to keep step with other ranks, which have more: nothing is learned from it."""
    join: Callable[[Tensor], Tensor] | None = None
    """Numbers for this rank's part of the tokens learned from -> for all of them, where there are several parts."""

    def spread(self, value_M: Tensor) -> Tensor:
        """A number for each token learned from -> [B, T], 0 where there is none."""
        if self.join is not None:
            value_M = self.join(value_M)
        return torch.zeros(self.mask_BT.shape, dtype=value_M.dtype, device=value_M.device).masked_scatter(
            self.mask_BT, value_M
        )

    def chosen(self, streams: Sequence[Sequence[float]]) -> Tensor:
        """A number for every token of each sample -> those of the tokens learned from, [B, T]."""
        return _spread(self.mask_BT.cpu(), self.samples, streams).to(self.mask_BT.device)


@dataclass(frozen=True, slots=True)
class _Family:
    """Samples with the same prompt."""

    prompt: tuple[int, ...]
    samples: list[Sample]

    @property
    def tokens(self) -> int:
        return len(self.prompt) + sum(_read(sample, len(self.prompt)) for sample in self.samples)


def micro_batches(
    samples: Sequence[Sample], budget: int, device: torch.device, ranks: int = 1, rank: int = 0
) -> Iterator[MicroBatch]:
    """Split into micro-batches of at most `budget` tokens to read (or one sample, if that alone is longer).

    Of several ranks each gets as many, about equally long at a time.
    """
    parts = _parts(samples, budget)
    if ranks > 1:
        total = sum(map(_tokens, parts))
        turns = max(1, -(-total // (budget * ranks)))
        parts = sorted(_parts(samples, max(1, -(-total // (turns * ranks)))), key=_tokens)
    for first in range(0, len(parts), ranks):
        mine = first + rank
        batch = _packed(parts[min(mine, len(parts) - 1)], device)
        yield batch if mine < len(parts) else replace(batch, idle=True)


def _parts(samples: Sequence[Sample], budget: int) -> list[list[_Family]]:
    parts: list[list[_Family]] = []
    left = 0
    for family in _families(samples, budget):
        if not parts or family.tokens > left:
            parts.append([])
            left = budget
        parts[-1].append(family)
        left -= family.tokens
    return parts


def _tokens(part: Sequence[_Family]) -> int:
    return sum(family.tokens for family in part)


def _families(samples: Sequence[Sample], budget: int) -> Iterator[_Family]:
    """Those with the same prompt together, in order; too many of them in parts that fit."""
    found: dict[tuple[int, ...], list[Sample]] = {}
    for sample in samples:
        prompt = sample.tokens[: sample.mask.index(True)]
        if not prompt:
            raise ValueError("a sample without a prompt has nothing to predict its first token from")
        found.setdefault(prompt, []).append(sample)
    for prompt, members in found.items():
        part, size = list[Sample](), len(prompt)
        for sample in members:
            more = _read(sample, len(prompt))
            if part and size + more > budget:
                yield _Family(prompt, part)
                part, size = [], len(prompt)
            part.append(sample)
            size += more
        yield _Family(prompt, part)


def _read(sample: Sample, prompt: int) -> int:
    """Tokens of a sample's own that the model reads."""
    return len(sample.tokens) - prompt - 1


def _packed(families: Sequence[_Family], device: torch.device) -> MicroBatch:
    tokens, positions = list[int](), list[int]()
    segments, sources, targets = list[Segment](), list[int](), list[int]()

    def add(some: Sequence[int], first: int, prefix: int | None) -> None:
        segments.append(Segment(len(tokens), len(some), prefix))
        positions.extend(range(first, first + len(some)))
        tokens.extend(some)

    samples = [sample for family in families for sample in family.samples]
    for family in families:
        size, start = len(family.prompt), len(tokens)
        alone = len(family.samples) == 1
        prompt = len(segments)
        if not alone:
            add(family.prompt, 0, None)
        for sample in family.samples:
            own = len(tokens) - (0 if alone else size)  # where its first token would be, had it a prompt of its own
            if alone:
                add(sample.tokens[:-1], 0, None)
            elif _read(sample, size):
                add(sample.tokens[size:-1], size, prompt)
            at = len(sources)
            sources.extend(compress(range(own - 1, own - 1 + len(sample.mask)), sample.mask))
            sources[at] = start + size - 1  # the first comes after the prompt, wherever that is
            targets.extend(compress(sample.tokens, sample.mask))
    lengths = [sample.response_length for sample in samples]
    mask_BT = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    behaviour = [sample.logprobs for sample in samples]
    old = [sample.old_logprobs or sample.logprobs for sample in samples]
    credit = [sample.advantages or (sample.advantage,) * len(sample.tokens) for sample in samples]
    spread = [_spread(mask_BT, samples, values).to(device) for values in (behaviour, old, credit)]
    return MicroBatch(
        token_N=tensor_of(tokens, device),
        position_N=tensor_of(positions, device),
        plan=Varlen(segments, device) if device.type == "cuda" else Plan(segments, device),
        source_M=tensor_of(sources, device),
        target_M=tensor_of(targets, device),
        mask_BT=mask_BT.to(device),
        behaviour_logp_BT=spread[0],
        old_logp_BT=spread[1],
        advantage_BT=spread[2],
        samples=tuple(samples),
    )


def _spread(mask_BT: Tensor, samples: Sequence[Sample], values: Sequence[Sequence[float]]) -> Tensor:
    chosen = list[float]()
    for sample, row in zip(samples, values, strict=True):
        chosen.extend(compress(row, sample.mask))
    whole_BT = torch.zeros(mask_BT.shape, dtype=torch.float64)
    whole_BT[mask_BT] = torch.from_numpy(np.array(chosen, dtype=np.float64))
    return whole_BT
