"""Overflow-safe exp for log-ratios."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["safe_exp"]

_LINEAR_FROM = 20.0
"""Log-ratio above which exp continues linearly; far beyond every clip."""


def safe_exp(delta: "Tensor") -> "Tensor":
    """exp(delta), linear above 20: finite in float32, and its gradient still pulls the ratio back."""
    return delta.clamp(max=_LINEAR_FROM).exp() * (1 + (delta - _LINEAR_FROM).clamp(min=0))
