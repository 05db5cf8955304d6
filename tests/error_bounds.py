"""Error bounds that follow from the arithmetic and not from the processor.

Processors and libraries add the terms of a sum in different orders, with or without fused multiply-add, so two correct
results differ by rounding errors. Two ways to bound the difference:

- Equality is the claim: compute in float64 throughout (`in_double`) and compare with `EQUAL`; where only float32 can be
  had, with `CLOSE`.
- Precision is the claim: measure the error against float64, and compare with `rounding_noise`.
"""

import math
from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm
from transformers import PreTrainedModel

U32 = 2.0**-24
"""Unit roundoff of float32: the largest relative error of one operation."""
U64 = 2.0**-53
"""Unit roundoff of float64."""
UNIT = {torch.float64: U64, torch.float32: U32, torch.bfloat16: 2.0**-8}

EQUAL = 2.0**16 * U64
"""Bound, about 7e-12, on the difference of two float64 results that are equal but for the order of their sums, relative
to the largest terms of those sums. A sum of n terms is off by at most n U64 of the sum of their absolute values. The
models of these tests have up to 3 layers of 7 products with n <= 300 terms, forward and backward: 42 times 300 is
2^13.6; norms, softmaxes and the loss multiply relative errors by a few at most. A single float32 operation in between
is still found: U32 is 2^29 U64."""
CLOSE = 2.0**8 * U32
"""Bound, about 1.5e-5, on the difference of two float32 results, likewise. Rounding errors are mostly independent, so
those of N operations add up to sqrt(N) of one: 42 times 300 of them to 2^6.8."""


def in_double(model: PreTrainedModel) -> PreTrainedModel:
    """Lets a float64 model of transformers compute its norms in float64, too, where transformers takes float32."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = MethodType(_norm, module)
    return model


def _norm(module: Any, x: Tensor) -> Tensor:
    return rms_norm(x, module.weight.shape, module.weight, module.variance_epsilon)


@torch.no_grad()
def rounding_noise(
    make: Callable[[], PreTrainedModel], scores: Callable[[PreTrainedModel], Tensor], unit: float, sums: float = U32
) -> float:
    """Root mean square of the error of a model's scores when numbers are rounded to `unit`, and sums to `sums`.

    A product of n terms in floating point is the exact product with other weights: each term goes through up to n
    roundings, so its weight is off by n u at most, and by about sqrt(n) u when rounding errors are independent (Higham
    and Mary, 2019). And a number goes through about 4 roundings from one product to the next (the product's own,
    residual sum, norm, norm's weight; a rotation or a gate has no more). So this takes float64 scores with each
    weight multiplied by 1 + sqrt(n sums^2 + 4 unit^2) r, r uniform in [-1, 1].

    For terms of size s and u = sums that gives a product an error of n u s / sqrt(3). Adding one term after another,
    the order with the largest error, rounds partial sums of size sqrt(k) s, together n u s / sqrt(6) if each error
    were uniform in [-u, u] of its sum; it is about 0.7 of that, since u is the worst case over mantissas. So sums in
    sequence reach half of the bound, and blocked sums or fused multiply-adds less.
    """
    exact, squares = scores(make()), []
    for seed in range(3):
        draw = torch.Generator().manual_seed(seed)
        model = make()
        factors = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Linear)}
        for weight in model.parameters():
            terms = weight.shape[-1] if id(weight) in factors else 0
            noise = torch.rand(weight.shape, generator=draw, dtype=weight.dtype).mul_(2).sub_(1)
            weight.mul_(1 + math.sqrt(terms * sums**2 + 4 * unit**2) * noise)
        squares.append(scores(model).sub(exact).square().mean())
    return float(torch.stack(squares).mean().sqrt())


def rms(errors: Tensor) -> float:
    """Root mean square."""
    return float(errors.double().square().mean().sqrt())


def assert_equal(found: Iterable[Tensor], expected: Iterable[Tensor]) -> None:
    """Asserts that float64 tensors differ by at most `EQUAL` times the largest number in all of them."""
    pairs = list(zip(found, expected, strict=True))
    scale = max(float(theirs.abs().max()) for _, theirs in pairs)
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs, rtol=0, atol=EQUAL * scale)
