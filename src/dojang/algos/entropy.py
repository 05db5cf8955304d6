"""Entropy bonus: coef times the mean entropy of the policy's tokens is subtracted from the loss.

    loss = policy loss - coef * mean over trained tokens of H_t       H_t: over the vocabulary at the temperature

With a target the coefficient is adaptive (Skywork-OR1, arXiv 2505.22312). After an optimizer step of mean entropy e:

    c <- clip(c + delta if e <= target else c - delta, min, max)      applied in the next step if e <= target
"""

import math
from typing import Self

from pydantic import Field, model_validator

from dojang.core.section import Section

__all__ = ["EntropyBonus", "EntropyConfig"]


class EntropyConfig(Section):
    """Entropy bonus, fixed or adaptive (docs/algorithms.md)."""

    coef: float = Field(default=0.0, ge=0)
    """Entropy coefficient: the mean entropy per token, times this, is subtracted from the loss. With `target`, the
    initial coefficient; 0 without a target disables the bonus."""
    target: float | None = Field(default=None, gt=0)
    """Target entropy in nats per token: after each optimizer step the coefficient rises by `delta` if the entropy was
    at most this, else it falls; the bonus is applied while the entropy is at most this."""
    delta: float = Field(default=0.005, gt=0)
    """Change of the adaptive coefficient per optimizer step."""
    min_coef: float = Field(default=0.0, ge=0)
    """Lower bound of the adaptive coefficient."""
    max_coef: float = Field(default=1.0, gt=0)
    """Upper bound of the adaptive coefficient."""

    @property
    def enabled(self) -> bool:
        return self.coef > 0 or self.target is not None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        fields = type(self).model_fields
        adaptive = [key for key in ("delta", "min_coef", "max_coef") if getattr(self, key) != fields[key].default]
        if adaptive and self.target is None:
            raise ValueError(f"{', '.join(adaptive)} is for an adaptive coefficient; set target too, or leave it out")
        if self.target is not None and not self.min_coef <= self.coef <= self.max_coef:
            raise ValueError(
                f"coef={self.coef:g} must be between min_coef={self.min_coef:g} and max_coef={self.max_coef:g}"
            )
        return self


class EntropyBonus:
    """Entropy coefficient of one policy, fixed or adaptive."""

    def __init__(self, config: EntropyConfig) -> None:
        self._config = config
        self._coef, self._last = config.coef, math.inf

    @property
    def coef(self) -> float:
        """Coefficient of the next optimizer step."""
        target = self._config.target
        return self._coef if target is None or self._last <= target else 0.0

    def update(self, entropy: float) -> None:
        """Adapts the coefficient to the mean entropy of an optimizer step."""
        config = self._config
        if config.target is not None:
            change = config.delta if entropy <= config.target else -config.delta
            self._coef = min(max(self._coef + change, config.min_coef), config.max_coef)
        self._last = entropy

    def state(self) -> dict[str, float]:
        """Returns the state for a checkpoint."""
        return {"coef": self._coef, "last": self._last}

    def restore(self, state: dict[str, float]) -> None:
        """Restores what `state` returned; a fixed coefficient comes from the configuration."""
        self._last = state["last"]
        if self._config.target is not None:
            self._coef = state["coef"]
