"""Attention over samples packed into one row: each sees its own tokens, and those of the prompt it shares.

transformers calls it in the place of its own. Segments about equally long are put side by side, padded, for the sake of
the attention alone: nothing else of the model ever sees padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from dojang.core.errors import ModelError

__all__ = ["NO_MASK", "Attention", "Plan", "Segment", "see_packed", "tensor_of"]

NO_MASK = torch.empty(1, 1, 1, 1)
"""transformers takes whatever has four dimensions for a mask that is ready, and makes none."""
_NAME = "dojang_packed"
_STRANGE = ("sliding_window", "softcap", "s_aux", "position_bias")
"""What some architectures ask of their attention."""
_GRAIN = 64
"""Segments whose sizes round up to the same multiple of this are put side by side."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Some tokens of the row, one after the other."""

    start: int
    size: int
    prefix: int | None
    """Which segment comes before it, if it is the rest of a sample; its neighbours may share it."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Segments side by side: `count` of them, padded to `width`; all after the same prefix, if there is one."""

    count: int
    width: int
    prefix: int | None
    mask_QK: Tensor | None


class Attention(Protocol):
    """What a model is given in the place of a mask."""

    def attend(self, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor, scale: float) -> Tensor:
        """What each token sees, [N, H, D]."""


class Plan:
    """How to compute attention for a row of segments."""

    def __init__(self, segments: Sequence[Segment], device: torch.device) -> None:
        shared = list(dict.fromkeys(each.prefix for each in segments if each.prefix is not None))
        self._prefix_sizes = [segments[each].size for each in shared]
        self._blocks = list[_Block]()
        places, order = list[int](), [0] * sum(each.size for each in segments)
        for prefix, members in _alike(segments):
            width = max(each.size for each in members)
            if prefix is None:
                self._blocks.append(_Block(len(members), width, None, None))
            else:
                before = segments[prefix].size
                mask_QK = torch.ones(width, before + width, dtype=torch.bool, device=device).tril(before)
                self._blocks.append(_Block(len(members), width, shared.index(prefix), mask_QK))
            for each in members:
                order[each.start : each.start + each.size] = range(len(places), len(places) + each.size)
                places += _range(each)
                places += [each.start] * (width - each.size)  # whatever: nobody looks at it
        prefixes = [place for each in shared for place in _range(segments[each])]
        self._place_P, self._order_N, self._prefix_R = (tensor_of(each, device) for each in (places, order, prefixes))

    def attend(self, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor, scale: float) -> Tensor:
        """What each token sees, [N, H, D]."""
        sizes = [block.count * block.width for block in self._blocks]
        q, k, v = (
            _padded(each, self._place_P, self._order_N).split_with_sizes(sizes) for each in (q_NHD, k_NKD, v_NKD)
        )
        k_before, v_before = (
            _taken(each, self._prefix_R).split_with_sizes(self._prefix_sizes) for each in (k_NKD, v_NKD)
        )
        seen = []
        for at, block in enumerate(self._blocks):
            q_BTHD, k_BTKD, v_BTKD = (
                each[at].view(block.count, block.width, *each[at].shape[1:]) for each in (q, k, v)
            )
            if block.prefix is not None:
                k_BTKD, v_BTKD = _after(k_before[block.prefix], k_BTKD), _after(v_before[block.prefix], v_BTKD)
            seen_BHTD = scaled_dot_product_attention(
                q_BTHD.transpose(1, 2),
                k_BTKD.transpose(1, 2),
                v_BTKD.transpose(1, 2),
                attn_mask=block.mask_QK,
                is_causal=block.mask_QK is None,
                scale=scale,
                enable_gqa=q_NHD.shape[1] != k_NKD.shape[1],
            )
            seen.append(seen_BHTD.transpose(1, 2).flatten(0, 1))
        return _taken(torch.cat(seen), self._order_N)


def _alike(segments: Sequence[Segment]) -> list[tuple[int | None, list[Segment]]]:
    """Segments after the same prefix, and about equally long, together."""
    found: dict[tuple[int | None, int], list[Segment]] = {}
    for each in segments:
        found.setdefault((each.prefix, -(-each.size // _GRAIN)), []).append(each)
    return [(prefix, members) for (prefix, _), members in found.items()]


def tensor_of(numbers: Sequence[int], device: torch.device) -> Tensor:
    """numpy reads a list four times as fast as torch."""
    return torch.from_numpy(np.array(numbers, dtype=np.int64)).to(device)


def _range(segment: Segment) -> range:
    return range(segment.start, segment.start + segment.size)


def _after(before_RKD: Tensor, own_BTKD: Tensor) -> Tensor:
    """A prefix in front of each of those that share it."""
    return torch.cat((before_RKD.expand(len(own_BTKD), *before_RKD.shape), own_BTKD), 1)


# torch's own gradient of x[index] adds row by row, in case an index comes twice; here none does, so a copy suffices.


class _Padded(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x_N: Tensor, place_P: Tensor, order_N: Tensor) -> Tensor:
        context.save_for_backward(order_N)
        return x_N.index_select(0, place_P)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (order_N,) = context.saved_tensors
        return gradients[0].index_select(0, order_N), None, None


class _Taken(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x_P: Tensor, index_N: Tensor) -> Tensor:
        context.save_for_backward(index_N)
        context.rows = len(x_P)
        return x_P.index_select(0, index_N)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (index_N,) = context.saved_tensors
        whole_P = gradients[0].new_zeros(context.rows, *gradients[0].shape[1:])
        whole_P[index_N] = gradients[0]
        return whole_P, None


def _padded(x_N: Tensor, place_P: Tensor, order_N: Tensor) -> Tensor:
    """x[place], of which only x[place][order] = x will be looked at."""
    result: Tensor = _Padded.apply(x_N, place_P, order_N)  # type: ignore[no-untyped-call]
    return result


def _taken(x_P: Tensor, index_N: Tensor) -> Tensor:
    """x[index], where no index comes twice."""
    result: Tensor = _Taken.apply(x_P, index_N)  # type: ignore[no-untyped-call]
    return result


def _attend(
    module: torch.nn.Module,
    q_1HND: Tensor,
    k_1KND: Tensor,
    v_1KND: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    plan: Attention | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Without a plan, as transformers does it."""
    if plan is None:
        seen: tuple[Tensor, None] = sdpa_attention_forward(
            module, q_1HND, k_1KND, v_1KND, attention_mask, scaling=scaling, **options
        )
        return seen
    if strange := [name for name in _STRANGE if options.get(name) is not None]:
        raise ModelError(f"{type(module).__name__} wants {', '.join(strange)}, which is not known here")
    q_NHD, k_NKD, v_NKD = (each[0].transpose(0, 1) for each in (q_1HND, k_1KND, v_1KND))
    return plan.attend(q_NHD, k_NKD, v_NKD, scaling)[None], None


def see_packed(model: PreTrainedModel) -> None:
    """Let a model attend by the plan given to a call: `model(..., plan=plan, attention_mask=NO_MASK)`."""
    AttentionInterface.register(_NAME, _attend)
    AttentionMaskInterface.register(_NAME, sdpa_mask)
    if not model._can_set_attn_implementation():
        raise ModelError(f"{type(model).__name__} does not let its attention be replaced, so it cannot be trained here")
    model.set_attn_implementation(_NAME)
