"""Attention of samples packed into one row: each sample attends to its own tokens and to its shared prompt.

transformers calls it instead of the model's attention. Segments of similar length are padded to one batch inside the
attention only: no other layer sees padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from dojang.core.errors import ModelError

__all__ = ["NO_MASK", "AttentionPlan", "PaddedAttention", "Segment", "index_tensor", "use_packed_attention"]

NO_MASK = torch.empty(1, 1, 1, 1)
"""A 4-dimensional mask, which transformers takes as final instead of building one."""
_NAME = "dojang_packed"
_UNSUPPORTED = ("s_aux", "position_bias")
"""Attention options of some architectures that packed attention does not implement."""
_SIZE_STEP = 64
"""Segments whose sizes round up to the same multiple of this are padded to one batch."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A contiguous range of tokens in the row."""

    start: int
    size: int
    prefix: int | None
    """Index of the segment with the shared prompt, if this is the rest of a sample."""


@dataclass(frozen=True, slots=True)
class _Block:
    """A batch of `count` segments padded to `width`, all with the same prefix, if any."""

    count: int
    width: int
    prefix: int | None
    before: int
    """Number of tokens in the prefix."""

    def mask(self, window: int, device: torch.device, *, always: bool) -> Tensor | None:
        """Tokens that each token attends to, [Q, K]; None if those are all before it, unless `always`."""
        reach = self.before + self.width
        windowed = 0 < window < reach
        if not (self.before or windowed or always):
            return None
        mask_QK = torch.ones(self.width, reach, dtype=torch.bool, device=device).tril(self.before)
        return mask_QK.triu(self.before - window + 1) if windowed else mask_QK


class AttentionPlan(Protocol):
    """Attention of one packed row, passed to the model instead of a mask."""

    def attend(
        self, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor, scale: float, window: int = 0, softcap: float = 0.0
    ) -> Tensor:
        """Attention output of each token, [N, H, D]. A token attends to itself and the `window` - 1 tokens before it
        (0: to all). With `softcap`, scores become softcap * tanh(score / softcap)."""


class PaddedAttention:
    """Attention of a row of segments by padded batches (any device and dtype)."""

    def __init__(self, segments: Sequence[Segment], device: torch.device) -> None:
        shared = list(dict.fromkeys(each.prefix for each in segments if each.prefix is not None))
        self._prefix_sizes = [segments[each].size for each in shared]
        self._blocks = list[_Block]()
        self._masks = dict[tuple[int, bool], list[Tensor | None]]()
        places, order = list[int](), [0] * sum(each.size for each in segments)
        for prefix, members in _similar_sizes(segments):
            width = max(each.size for each in members)
            if prefix is None:
                self._blocks.append(_Block(len(members), width, None, 0))
            else:
                self._blocks.append(_Block(len(members), width, shared.index(prefix), segments[prefix].size))
            for each in members:
                order[each.start : each.start + each.size] = range(len(places), len(places) + each.size)
                places += _range(each)
                places += [each.start] * (width - each.size)  # padding: any value, never read
        prefixes = [place for each in shared for place in _range(segments[each])]
        self._place_P, self._order_N, self._prefix_R = (
            index_tensor(each, device) for each in (places, order, prefixes)
        )

    def attend(
        self, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor, scale: float, window: int = 0, softcap: float = 0.0
    ) -> Tensor:
        """Attention output of each token, [N, H, D]."""
        if (key := (window, softcap > 0)) not in self._masks:
            self._masks[key] = [block.mask(window, q_NHD.device, always=softcap > 0) for block in self._blocks]
        sizes = [block.count * block.width for block in self._blocks]
        q, k, v = (
            _pad_rows(each, self._place_P, self._order_N).split_with_sizes(sizes) for each in (q_NHD, k_NKD, v_NKD)
        )
        k_before, v_before = (
            _select_rows(each, self._prefix_R).split_with_sizes(self._prefix_sizes) for each in (k_NKD, v_NKD)
        )
        seen = []
        for at, (block, mask_QK) in enumerate(zip(self._blocks, self._masks[key], strict=True)):
            q_BTHD, k_BTKD, v_BTKD = (
                each[at].view(block.count, block.width, *each[at].shape[1:]) for each in (q, k, v)
            )
            if block.prefix is not None:
                k_BTKD, v_BTKD = (
                    _prepend_prefix(k_before[block.prefix], k_BTKD),
                    _prepend_prefix(v_before[block.prefix], v_BTKD),
                )
            q_BHTD, k_BKTD, v_BKTD = (each.transpose(1, 2) for each in (q_BTHD, k_BTKD, v_BTKD))
            if softcap and mask_QK is not None:
                seen_BHTD = _capped_attention(q_BHTD, k_BKTD, v_BKTD, mask_QK, scale, softcap)
            else:
                seen_BHTD = scaled_dot_product_attention(
                    q_BHTD,
                    k_BKTD,
                    v_BKTD,
                    attn_mask=mask_QK,
                    is_causal=mask_QK is None,
                    scale=scale,
                    enable_gqa=q_NHD.shape[1] != k_NKD.shape[1],
                )
            seen.append(seen_BHTD.transpose(1, 2).flatten(0, 1))
        return _select_rows(torch.cat(seen), self._order_N)


def _capped_attention(
    q_BHQD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, mask: Tensor, scale: float, softcap: float
) -> Tensor:
    """Attention with soft-capped scores, which torch's own does not have; `mask` is True where a token attends."""
    groups = q_BHQD.shape[1] // k_BKTD.shape[1]
    k_BHTD, v_BHTD = k_BKTD.repeat_interleave(groups, 1), v_BKTD.repeat_interleave(groups, 1)
    score_BHQT = (q_BHQD @ k_BHTD.transpose(-1, -2)) * scale
    score_BHQT = (score_BHQT / softcap).tanh() * softcap
    score_BHQT = score_BHQT.masked_fill(~mask, -torch.inf)
    precise = torch.promote_types(score_BHQT.dtype, torch.float32)
    return score_BHQT.softmax(-1, dtype=precise).to(v_BHTD.dtype) @ v_BHTD


def _similar_sizes(segments: Sequence[Segment]) -> list[tuple[int | None, list[Segment]]]:
    """Groups segments with the same prefix and a similar size."""
    found: dict[tuple[int | None, int], list[Segment]] = {}
    for each in segments:
        found.setdefault((each.prefix, -(-each.size // _SIZE_STEP)), []).append(each)
    return [(prefix, members) for (prefix, _), members in found.items()]


def index_tensor(numbers: Sequence[int] | NDArray[np.integer], device: torch.device) -> Tensor:
    """Makes an index tensor. numpy reads a list four times as fast as torch."""
    return torch.from_numpy(np.array(numbers, dtype=np.int64)).to(device)


def _range(segment: Segment) -> range:
    return range(segment.start, segment.start + segment.size)


def _prepend_prefix(before_RKD: Tensor, own_BTKD: Tensor) -> Tensor:
    """Prepends a shared prefix to each segment."""
    return torch.cat((before_RKD.expand(len(own_BTKD), *before_RKD.shape), own_BTKD), 1)


# torch's gradient of x[index] adds row by row, in case an index repeats. Here none does, so a copy suffices.


class _PadRows(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x_N: Tensor, place_P: Tensor, order_N: Tensor) -> Tensor:
        context.save_for_backward(order_N)
        return x_N.index_select(0, place_P)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (order_N,) = context.saved_tensors
        return gradients[0].index_select(0, order_N), None, None


class _SelectRows(torch.autograd.Function):
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


def _pad_rows(x_N: Tensor, place_P: Tensor, order_N: Tensor) -> Tensor:
    """x[place]; only the rows with x[place][order] = x are read later."""
    result: Tensor = _PadRows.apply(x_N, place_P, order_N)  # type: ignore[no-untyped-call]
    return result


def _select_rows(x_P: Tensor, index_N: Tensor) -> Tensor:
    """x[index], where no index repeats."""
    result: Tensor = _SelectRows.apply(x_P, index_N)  # type: ignore[no-untyped-call]
    return result


def _attend(
    module: torch.nn.Module,
    q_1HND: Tensor,
    k_1KND: Tensor,
    v_1KND: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    plan: AttentionPlan | None = None,
    softcap: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention function registered with transformers; without a plan, transformers' own SDPA."""
    if plan is None and softcap:
        mask = torch.ones(q_1HND.shape[2], k_1KND.shape[2], dtype=torch.bool, device=q_1HND.device).tril()
        capped = _capped_attention(
            q_1HND, k_1KND, v_1KND, mask if attention_mask is None else attention_mask, scaling, softcap
        )
        return capped.transpose(1, 2), None
    if plan is None:
        seen: tuple[Tensor, None] = sdpa_attention_forward(
            module, q_1HND, k_1KND, v_1KND, attention_mask, scaling=scaling, **options
        )
        return seen
    if unsupported := [name for name in _UNSUPPORTED if options.get(name) is not None]:
        raise ModelError(
            f"{type(module).__name__} needs {', '.join(unsupported)}, which packed attention does not support"
        )
    q_NHD, k_NKD, v_NKD = (each[0].transpose(0, 1) for each in (q_1HND, k_1KND, v_1KND))
    window = options.get("sliding_window") or 0
    return plan.attend(q_NHD, k_NKD, v_NKD, scaling, window, softcap or 0.0)[None], None


def use_packed_attention(model: PreTrainedModel) -> None:
    """Makes a model use the plan given to a call: `model(..., plan=plan, attention_mask=NO_MASK)`."""
    AttentionInterface.register(_NAME, _attend)
    AttentionMaskInterface.register(_NAME, sdpa_mask)
    if not model._can_set_attn_implementation():
        raise ModelError(f"{type(model).__name__} does not let its attention be replaced, so it cannot be trained here")
    model.set_attn_implementation(_NAME)
