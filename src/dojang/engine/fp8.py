"""FP8 matrix products for inference: weights and inputs of linear layers in 8 bits (E4M3), one scale per row of each.

Decoding reads all weights in every step, so half the bytes are nearly twice the speed where few sequences run, and
matrix units multiply 8 bits twice as fast where many do. Weights are quantized after each update; those that it writes
stay as they are. On a CPU the products have the same rounding and are no faster: for tests, and to see what FP8 does to
learning before a GPU is there.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from dojang.core.errors import ModelError

__all__ = ["Fp8Weight", "check_gpu", "check_layers"]

LARGEST = 448.0
_REMEDY = "set rollout.engine.quantization=none"
_SMALLEST_SCALE = 1e-12
_MULTIPLE = 16
"""Sizes that the GPU's product supports are multiples of this."""
_QUANTIZED_AT_ONCE = 2**24
"""Elements of a weight, which take twelve bytes each meanwhile."""


class Fp8Weight:
    """A weight in 8 bits, in memory that stays where it is: CUDA graphs hold its address."""

    def __init__(self, weight_FE: Tensor) -> None:
        if weight_FE.device.type == "cuda":
            check_gpu(weight_FE.device)
            check_layers(weight_FE.dtype, weight_FE.shape)
        self._bytes_FE = torch.empty_like(weight_FE, dtype=torch.float8_e4m3fn)
        self._scale_F = torch.empty(len(weight_FE), dtype=torch.float32, device=weight_FE.device)
        self._plain_FE: Tensor | None = None
        """On a CPU: the weight with its rounding, in the precision of the products."""
        self.fill(weight_FE)

    def fill(self, weight_FE: Tensor) -> None:
        """Quantize a new weight, some rows at a time: it takes copies in float32, and memory may be nearly full."""
        count = max(1, _QUANTIZED_AT_ONCE // weight_FE.shape[1])
        for rows in (slice(first, first + count) for first in range(0, len(weight_FE), count)):
            self._bytes_FE[rows], self._scale_F[rows] = quantized(weight_FE[rows])
        if weight_FE.device.type == "cpu":
            self._plain_FE = restored(self._bytes_FE, self._scale_F, weight_FE.dtype)

    def product(self, x_NE: Tensor, bias_F: Tensor | None) -> Tensor:
        """Product with quantized inputs, [N, F]."""
        if self._plain_FE is not None:
            return functional.linear(restored(*quantized(x_NE), x_NE.dtype), self._plain_FE, bias_F)
        from dojang.engine.triton_kernels import quantize_rows  # loads Triton

        bytes_NE, scale_N = quantize_rows(x_NE)
        scales = scale_N[:, None], self._scale_F[None]
        return torch._scaled_mm(
            bytes_NE, self._bytes_FE.t(), *scales, bias_F, out_dtype=x_NE.dtype, use_fast_accum=True
        )


def quantized(x_NE: Tensor) -> tuple[Tensor, Tensor]:
    """Rows in 8 bits, with the scale of each."""
    wide_NE = x_NE.float()
    scale_N = wide_NE.abs().amax(-1).clamp(min=_SMALLEST_SCALE) / LARGEST
    # Rounding of the scale may lead just past the largest number, which would become NaN.
    return (wide_NE / scale_N[:, None]).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn), scale_N


def restored(bytes_NE: Tensor, scale_N: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows with the rounding of 8 bits."""
    return (bytes_NE.float() * scale_N[:, None]).to(dtype)


def check_gpu(device: torch.device) -> None:
    """Raises ModelError if a GPU has no such products."""
    if torch.cuda.get_device_capability(device) < (9, 0):
        name = torch.cuda.get_device_name(device)
        raise ModelError(f"{name} has no FP8 products with a scale per row; {_REMEDY}")


def check_layers(dtype: torch.dtype, sizes: Sequence[int]) -> None:
    """Raises ModelError if no GPU has such products for weights of a precision and these sizes."""
    if dtype is not torch.bfloat16:
        precision = str(dtype).removeprefix("torch.")
        raise ModelError(f"FP8 on a GPU is for model.dtype=bfloat16, not {precision}; change it, or {_REMEDY}")
    if odd := [size for size in sizes if size % _MULTIPLE]:
        raise ModelError(f"FP8 needs layers of sizes that are multiples of {_MULTIPLE}, not {odd[0]}; {_REMEDY}")
