"""Sequence packing: many samples in one row without padding, a shared prompt only once.

The last token of a sample predicts nothing and is left out. Trained tokens are stored apart from input tokens: a [B, T]
matrix with a row per sample and a column per sampled token, without the tokens between them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dojang.trainer.flash_attention import VarlenAttention
from dojang.trainer.packed_attention import AttentionPlan, PaddedAttention, Segment, index_tensor
from dojang.types import Sample

Floats = NDArray[np.float32] | NDArray[np.float64]
Ints = NDArray[np.int32]
Indices = NDArray[np.int64]

__all__ = ["MicroBatch", "micro_batches"]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Packed samples: N input tokens, and M trained tokens of B samples."""

    token_N: Tensor
    position_N: Tensor
    plan: AttentionPlan
    """Attention pattern of the packed row."""
    source_M: Tensor
    """Position in the row that predicts each trained token."""
    target_M: Tensor
    """The trained tokens, sample by sample."""
    mask_BT: Tensor
    """True in the leading columns of each row that hold trained tokens."""
    behaviour_logp_BT: Tensor
    old_logp_BT: Tensor
    """Trainer log-probs before the first update, or else the behaviour log-probs."""
    advantage_BT: Tensor
    samples: tuple[Sample, ...]
    """The samples, one per row of [B, T]."""
    idle: bool = False
    """Whether it only keeps this rank in step with ranks that have more micro-batches: it has no gradient."""
    join: Callable[[Tensor], Tensor] | None = None
    """Sequence parallelism: values of this rank's trained tokens -> values of all trained tokens."""

    def scatter(self, value_M: Tensor) -> Tensor:
        """Values of the trained tokens -> [B, T], 0 elsewhere."""
        if self.join is not None:
            value_M = self.join(value_M)
        return torch.zeros(self.mask_BT.shape, dtype=value_M.dtype, device=value_M.device).masked_scatter(
            self.mask_BT, value_M
        )

    def chosen(self, streams: Sequence[Sequence[float] | Floats]) -> Tensor:
        """Values of all tokens of each sample -> values of the trained tokens, [B, T]."""
        return _scatter(self.mask_BT.cpu(), self.samples, streams).to(self.mask_BT.device)


@dataclass(frozen=True, slots=True)
class _PromptGroup:
    """Samples with the same prompt."""

    prompt: Ints
    samples: list[Sample]

    @property
    def tokens(self) -> int:
        return len(self.prompt) + sum(_own_tokens(sample, len(self.prompt)) for sample in self.samples)


def micro_batches(
    samples: Sequence[Sample], budget: int, device: torch.device, ranks: int = 1, rank: int = 0
) -> Iterator[MicroBatch]:
    """Splits into micro-batches of at most `budget` input tokens (or one sample, if that alone is longer).

    All ranks get the same number of micro-batches, of similar length at each turn.
    """
    parts = _parts(samples, budget)
    if ranks > 1:
        total = sum(map(_tokens, parts))
        turns = max(1, -(-total // (budget * ranks)))
        parts = sorted(_parts(samples, max(1, -(-total // (turns * ranks)))), key=_tokens)
    for first in range(0, len(parts), ranks):
        mine = first + rank
        batch = _pack(parts[min(mine, len(parts) - 1)], device)
        yield batch if mine < len(parts) else replace(batch, idle=True)


def _parts(samples: Sequence[Sample], budget: int) -> list[list[_PromptGroup]]:
    parts: list[list[_PromptGroup]] = []
    left = 0
    for prompt_group in _prompt_groups(samples, budget):
        if not parts or prompt_group.tokens > left:
            parts.append([])
            left = budget
        parts[-1].append(prompt_group)
        left -= prompt_group.tokens
    return parts


def _tokens(part: Sequence[_PromptGroup]) -> int:
    return sum(prompt_group.tokens for prompt_group in part)


def _prompt_groups(samples: Sequence[Sample], budget: int) -> Iterator[_PromptGroup]:
    """Groups samples by prompt, in order; splits groups that exceed the budget."""
    found: dict[bytes, list[Sample]] = {}
    for sample in samples:
        size = int(sample.mask.argmax())
        if not size:
            raise ValueError("a sample without a prompt cannot be trained: its first token has no context")
        found.setdefault(sample.tokens[:size].tobytes(), []).append(sample)
    for members in found.values():
        prompt = members[0].tokens[: int(members[0].mask.argmax())]
        part, size = list[Sample](), len(prompt)
        for sample in members:
            more = _own_tokens(sample, len(prompt))
            if part and size + more > budget:
                yield _PromptGroup(prompt, part)
                part, size = [], len(prompt)
            part.append(sample)
            size += more
        yield _PromptGroup(prompt, part)


def _own_tokens(sample: Sample, prompt: int) -> int:
    """Input tokens of a sample after its prompt."""
    return len(sample.tokens) - prompt - 1


def _pack(prompt_groups: Sequence[_PromptGroup], device: torch.device) -> MicroBatch:
    tokens, positions, sources = list[Ints](), list[Indices](), list[Indices]()
    segments = list[Segment]()

    def end() -> int:
        return segments[-1].start + segments[-1].size if segments else 0

    def add(some: Ints, first: int, prefix: int | None) -> None:
        segments.append(Segment(end(), len(some), prefix))
        positions.append(np.arange(first, first + len(some)))
        tokens.append(some)

    samples = [sample for prompt_group in prompt_groups for sample in prompt_group.samples]
    for prompt_group in prompt_groups:
        size, start = len(prompt_group.prompt), end()
        alone = len(prompt_group.samples) == 1
        prompt = len(segments)
        if not alone:
            add(prompt_group.prompt, 0, None)
        for sample in prompt_group.samples:
            own = end() - (0 if alone else size)  # start of the sample, if it had a prompt that it does not share
            if alone:
                add(sample.tokens[:-1], 0, None)
            elif _own_tokens(sample, size):
                add(sample.tokens[size:-1], size, prompt)
            source = sample.mask.nonzero()[0] + own - 1
            source[0] = start + size - 1  # the shared prompt predicts the first token
            sources.append(source)
    lengths = [sample.response_length for sample in samples]
    mask_BT = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    behaviour = [sample.logprobs for sample in samples]
    old = [sample.old_logprobs if sample.old_logprobs.size else sample.logprobs for sample in samples]
    advantages = [
        sample.advantages if sample.advantages.size else np.full(len(sample.tokens), sample.advantage)
        for sample in samples
    ]
    scatter = [_scatter(mask_BT, samples, values).to(device) for values in (behaviour, old, advantages)]
    return MicroBatch(
        token_N=index_tensor(np.concatenate(tokens), device),
        position_N=index_tensor(np.concatenate(positions), device),
        plan=VarlenAttention(segments, device) if device.type == "cuda" else PaddedAttention(segments, device),
        source_M=index_tensor(np.concatenate(sources), device),
        target_M=index_tensor(np.concatenate([each.tokens[each.mask] for each in samples]), device),
        mask_BT=mask_BT.to(device),
        behaviour_logp_BT=scatter[0],
        old_logp_BT=scatter[1],
        advantage_BT=scatter[2],
        samples=tuple(samples),
    )


def _scatter(mask_BT: Tensor, samples: Sequence[Sample], values: Sequence[Sequence[float] | Floats]) -> Tensor:
    whole_BT = np.zeros(mask_BT.shape)
    for at, (sample, row) in enumerate(zip(samples, values, strict=True)):
        chosen = np.asarray(row)[sample.mask]
        whole_BT[at, : len(chosen)] = chosen
    return torch.from_numpy(whole_BT)
