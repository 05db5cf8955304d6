"""Attention over packed samples on a GPU: one kernel (FlashAttention) for all of them, with nothing padded.

A sample's queries are its own tokens; its keys are those and, before them, a copy of the prompt's that it shares. The
kernel's causal mask is aligned at the end, so that each query sees the whole prompt.
"""

from collections.abc import Sequence
from functools import cache, cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from dojang.trainer.packed_attention import Plan, Segment, tensor_of

__all__ = ["Varlen"]

_HALF = (torch.bfloat16, torch.float16)


class Varlen:
    """A plan for half precision; for any other as the processor does it."""

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
            self._key_R = tensor_of(keys, device)

    def attend(self, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor, scale: float) -> Tensor:
        """What each token sees, [N, H, D]."""
        if torch.is_autocast_enabled(self._device.type):
            half = torch.get_autocast_dtype(self._device.type)
            q_NHD, k_NKD, v_NKD = (each.to(half) for each in (q_NHD, k_NKD, v_NKD))
        size = q_NHD.shape[-1]
        if q_NHD.dtype not in _HALF or size % 8 or size > 256 or not _able(self._device):
            return self._padded.attend(q_NHD, k_NKD, v_NKD, scale)
        if self._key_R is not None:
            k_NKD, v_NKD = _repeated(k_NKD, self._key_R), _repeated(v_NKD, self._key_R)
        seen_NHD: Tensor = torch.ops.aten._flash_attention_forward(
            q_NHD, k_NKD, v_NKD, *self._bounds, *self._longest, 0.0, True, False, scale=scale
        )[0]
        return seen_NHD

    @cached_property
    def _padded(self) -> Plan:
        return Plan(self._segments, self._device)


@cache
def _able(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (8, 0)


class _Repeated(torch.autograd.Function):
    """torch's own gradient would add up in half precision."""

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


def _repeated(x_N: Tensor, index_R: Tensor) -> Tensor:
    result: Tensor = _Repeated.apply(x_N, index_R)  # type: ignore[no-untyped-call]
    return result
