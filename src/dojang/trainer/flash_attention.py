"""Attention of packed samples on a GPU: one FlashAttention varlen call for all of them, without padding.

The queries of a sample are its own tokens. Its keys are a copy of the shared prompt's, then its own. The kernel aligns
the causal mask at the end, so each query attends to the whole prompt.
"""

from collections.abc import Sequence
from functools import cache, cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from dojang.trainer.packed_attention import PaddedAttention, Segment, index_tensor

__all__ = ["VarlenAttention"]

_HALF = (torch.bfloat16, torch.float16)


class VarlenAttention:
    """FlashAttention in half precision; other dtypes, sliding windows and soft-capping fall back to PaddedAttention."""

    def __init__(self, segments: Sequence[Segment], device: torch.device) -> None:
        self._segments, self._device = segments, device
        before = [0 if each.prefix is None else segments[each.prefix].size for each in segments]
        sizes = [each.size for each in segments]
        reach = [own + prefix for own, prefix in zip(sizes, before, strict=True)]
        self._longest = max(sizes), max(reach)
        self._bounds = tuple(
            torch.tensor([0, *accumulate(each)], dtype=torch.int32, device=device) for each in (sizes, reach)
        )
        self._key_R = None
        if any(before):
            keys = list[int]()
            for each in segments:
                for part in ([] if each.prefix is None else [segments[each.prefix]]) + [each]:
                    keys += range(part.start, part.start + part.size)
            self._key_R = index_tensor(keys, device)

    def attend(
        self, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor, scale: float, window: int = 0, softcap: float = 0.0
    ) -> Tensor:
        """Attention output of each token, [N, H, D]."""
        if torch.is_autocast_enabled(self._device.type):
            half = torch.get_autocast_dtype(self._device.type)
            q_NHD, k_NKD, v_NKD = (each.to(half) for each in (q_NHD, k_NKD, v_NKD))
        size = q_NHD.shape[-1]
        plain = not softcap and not 0 < window < self._longest[1]
        if not plain or q_NHD.dtype not in _HALF or size % 8 or size > 256 or not _supports_flash(self._device):
            return self._pad_rows.attend(q_NHD, k_NKD, v_NKD, scale, window, softcap)
        if self._key_R is not None:
            k_NKD, v_NKD = _gather_rows(k_NKD, self._key_R), _gather_rows(v_NKD, self._key_R)
        seen_NHD: Tensor = torch.ops.aten._flash_attention_forward(
            q_NHD, k_NKD, v_NKD, *self._bounds, *self._longest, 0.0, True, False, scale=scale
        )[0]
        return seen_NHD

    @cached_property
    def _pad_rows(self) -> PaddedAttention:
        return PaddedAttention(self._segments, self._device)


@cache
def _supports_flash(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (8, 0)


class _GatherRows(torch.autograd.Function):
    """Gathers rows; the gradient accumulates in float32, where torch would use half precision."""

    @staticmethod
    def forward(context: Any, x_N: Tensor, index_R: Tensor) -> Tensor:
        context.save_for_backward(index_R)
        context.rows = len(x_N)
        return x_N.index_select(0, index_R)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (index_R,) = context.saved_tensors
        whole_N = gradients[0].new_zeros(context.rows, *gradients[0].shape[1:], dtype=torch.float32)
        whole_N.index_add_(0, index_R, gradients[0].float())
        return whole_N.to(gradients[0].dtype), None


def _gather_rows(x_N: Tensor, index_R: Tensor) -> Tensor:
    result: Tensor = _GatherRows.apply(x_N, index_R)  # type: ignore[no-untyped-call]
    return result
