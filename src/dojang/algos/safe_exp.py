"""exp() for log-ratios that may be anything."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["growth"]

_FAR = 20.0
"""Far beyond every clip."""


def growth(delta: "Tensor") -> "Tensor":
    """exp(delta), but a straight line from 20 on: finite in single precision, and its gradient still leads back."""
    return delta.clamp(max=_FAR).exp() * (1 + (delta - _FAR).clamp(min=0))
