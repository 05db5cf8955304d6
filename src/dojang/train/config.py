"""Settings of the trainer."""

from typing import Annotated, Literal

from pydantic import Field

from dojang.settings import Section

__all__ = ["CriticConfig", "TrainConfig"]


Share = Annotated[float, Field(ge=0, lt=1)]


class CriticConfig(Section):
    """How the critic is updated, where the algorithm has one; what is not here it shares with the policy."""

    lr: float = Field(default=1e-5, gt=0, le=1000)
    """Its learning rate, which stays the same."""
    warmup: int = Field(default=0, ge=0)
    """Optimiser steps, the first ones, in which only the critic learns."""


class TrainConfig(Section):
    """How the policy is updated."""

    lr: float = Field(default=1e-6, gt=0, le=1000)
    """Peak learning rate."""
    warmup: int = Field(default=0, ge=0)
    """Optimiser steps over which the learning rate rises from zero to its peak."""
    schedule: Literal["constant", "cosine"] = "constant"
    """What the learning rate does after the warm-up; cosine ends at a tenth of the peak."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's decoupled weight decay."""
    betas: tuple[Share, Share] = (0.9, 0.99)
    """AdamW's running-average factors."""
    eps: float = Field(default=1e-8, gt=0)
    """AdamW's epsilon: gradients much smaller than this hardly move a weight."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients longer than this are scaled down to it."""
    updates: int = Field(default=1, ge=1)
    """Optimiser steps per batch of rollouts; from the second on the data is off-policy and clipping matters."""
    micro_tokens: int | None = Field(default=None, ge=1)
    """Tokens per forward pass; memory, not results, depends on it. Without it 2048, or on a GPU 8192."""
    recompute: bool = False
    """Make what the layers found again when its gradient is wanted, instead of keeping it: about a third more work, far
    less memory for long answers."""
    critic: CriticConfig = CriticConfig()
